"""What is said of a store: by rank 0, maybe in a thread, where a warning would name no line of the script."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(f"torchbus: {text}", file=sys.stderr, flush=True)
