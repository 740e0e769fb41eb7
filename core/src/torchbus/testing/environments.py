"""Virtual environments in which packages of torchbus are missing."""

from __future__ import annotations

import sys
import venv
from pathlib import Path


def empty_environment(folder: str | Path, *packages: str, without: str = "torchbus") -> str:
    """Make a virtual environment with what is installed here, less everything of torchbus, and what else begins with ``without``; returns
    its Python.

    Nothing is copied or downloaded. ``packages`` are importable packages that are to be there all the same, without
    being installed: ``"torchbus"`` gives a core that discovers no plugin.
    """
    venv.create(folder, with_pip=False)
    home = Path(folder).resolve()
    site = next(home.glob("lib*/python*/site-packages"), home / "Lib" / "site-packages")
    for path in map(Path, sys.path):
        if path.name in ("site-packages", "dist-packages"):
            for entry in path.iterdir():
                if not (entry.name.startswith(("torchbus", without)) or entry.suffix in (".pth", ".egg-link")) and not (site / entry.name).exists():
                    (site / entry.name).symlink_to(entry)
    for package in packages:
        (site / package).symlink_to(Path(sys.modules[package].__file__ or "").parent)
    return str(next(path for path in (home / "bin" / "python", home / "Scripts" / "python.exe") if path.exists()))
