"""Set up and run, on any machine with Python 3.10 or later and pip::

    python make.py demo            # the digits example, by itself and under one line, compared
    python make.py test            # ruff, mypy and the tests
    python make.py test -m slow    # further words go to pytest

Everything is installed into ``.venv``, which is used again as long as what it was made from is unchanged.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(f"torchbus needs Python 3.10 or later; this is Python {sys.version_info[0]}.{sys.version_info[1]}")

import argparse
import hashlib
import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
WORKERS = "2"  # most of a test goes by while the processes that it starts import torch
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def packages(purpose: str) -> list[Path]:
    """The folders of the packages to install, the core first: those that the demo uses, or all."""
    if purpose == "demo":
        return [ROOT / folder for folder in ("core", "plugins/ddp", "plugins/sampler")]
    return [ROOT / "core", *(path.parent for group in ("plugins", "contrib") for path in sorted(ROOT.glob(f"{group}/*/pyproject.toml")))]


def set_up(purpose: str) -> None:
    """Make ``.venv`` fit for "demo" or "test", unless it is so already."""
    mark, state = VENV / f"ready-for-{purpose}", fingerprint(purpose)
    if PYTHON.exists() and mark.is_file() and mark.read_text() == state:
        return
    say(f"setting up {VENV} (the first time, pip downloads torch)")
    if not PYTHON.exists() or subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode:
        venv.create(VENV, clear=True, with_pip=True)
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", ROOT / "requirements" / f"{purpose}.txt"], check=True)
    editable = [word for folder in packages(purpose) for word in ("-e", folder)]
    subprocess.run([*pip, "--quiet", "--no-build-isolation", "--no-deps", *editable], check=True)
    mark.write_text(state)


def fingerprint(purpose: str) -> str:
    """Changes with everything that ``.venv`` is made from: Python, place, requirements, what the packages declare."""
    files = [*sorted(ROOT.glob("requirements/*.txt")), *(folder / "pyproject.toml" for folder in packages(purpose))]
    text = f"{sys.version}\n{ROOT}\n" + "".join(path.read_text(encoding="utf-8") for path in files)
    return hashlib.sha256(text.encode()).hexdigest()


def run(*words: str | Path) -> int:
    say(" ".join(map(str, words)))
    return subprocess.run([PYTHON, *map(str, words)], cwd=ROOT).returncode


def say(text: str) -> None:
    print(f"make.py: {text}", flush=True)


def demo(words: list[str]) -> int:
    return run("examples/compare.py", *words)


def test(words: list[str]) -> int:
    sources = [folder.relative_to(ROOT) for package in packages("test") for folder in sorted(package.glob("src/*/"))]
    statuses = {
        "ruff": run("-m", "ruff", "check", "."),
        "mypy": run("-m", "mypy", *sources),
        "pytest": run("-m", "pytest", "-n", WORKERS, "--dist", "loadfile", *words),
    }
    failed = [name for name, status in statuses.items() if status]
    say(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up torchbus in .venv, and run its demo or its tests.")
    parser.add_argument("what", choices=("demo", "test"), help="what to run")
    given, words = parser.parse_known_args()
    try:
        set_up(given.what)
    except subprocess.CalledProcessError as error:
        say(f"could not set up {VENV}: {' '.join(map(str, error.cmd))} failed, see above")
        return 1
    return demo(words) if given.what == "demo" else test(words)


if __name__ == "__main__":
    sys.exit(main())
