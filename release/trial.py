"""Tries what was built: the words of its metadata, and installations into fresh environments.

An environment has torch and all others that packages need from the one that runs this. So pip
downloads nothing, and finds packages of torchbus only among the built ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from release import tree
from torchbus_testing.environments import empty_environment


def check_metadata(files: list[Path]) -> None:
    """Run ``twine check --strict``."""
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])


def install_each(root: Path, dists: Path) -> None:
    """Install each package with what it requires, and see that it fits."""
    for folder in tree.packages(root):
        name = distribution(folder)
        with tempfile.TemporaryDirectory() as scratch:
            python = installed(scratch, dists, name)
            module = name.replace("-", "_")
            _run([python, "-c", f"import {module}"], scratch)
            install(scratch, dists, python, "torchbus-cli")
            _run([python, "-m", "torchbus", "plugins", "--check"], scratch)
        print(f"release: {name} installs without the others", flush=True)


def install_all(root: Path, dists: Path, script: Path) -> None:
    """Install all packages at once, and run a script that trains on two ranks."""
    with tempfile.TemporaryDirectory() as scratch:
        python = installed(scratch, dists, "torchbus[all]")
        _run([python, "-m", "torchbus", "plugins", "--check"], scratch)
        told = _run([python, "-m", "torchbus", "--version"], scratch)
        if told != f"torchbus {tree.version(root)}\n":
            raise tree.Refused(f"what was built says that it is {told.strip()}")
        _run([python, str(script), "ddp"], scratch)
    print("release: all packages install together, and train on two ranks", flush=True)


def installed(scratch: str, dists: Path, *names: str) -> str:
    """Return the Python of a fresh environment with these packages."""
    python = empty_environment(Path(scratch, "environment"))
    install(scratch, dists, python, *names)
    return python


def install(scratch: str, dists: Path, python: str, *names: str) -> None:
    words = ["--quiet", "--no-index", "--no-compile", "--find-links", str(dists.resolve())]
    _run([python, "-m", "pip", "install", *words, *names], scratch)


def distribution(folder: Path) -> str:
    """The name of a folder's package."""
    for line in (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("name = "):
            return line.split('"')[1]
    raise tree.Refused(f"{folder / 'pyproject.toml'} has no name")


def _run(command: list[str], folder: str | None = None) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise tree.Refused(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
