"""``python -m torchbus``."""

from torchbus._cli import main

if __name__ == "__main__":
    raise SystemExit(main())
