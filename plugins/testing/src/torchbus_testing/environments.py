"""Virtual environments in which packages of torchbus are missing."""

from __future__ import annotations

import sys
import venv
from pathlib import Path


def empty_environment(folder: str | Path, *packages: str, without: str = "torchbus") -> str:
    """Make a virtual environment without torchbus; return its Python.

    It has what is installed here, except everything of torchbus and what begins with ``without``.
    Nothing is copied or downloaded.

    ``packages``: importable packages that it has nevertheless, without being installed. For
    example, ``"torchbus"`` gives a core that discovers no plugin.
    """
    venv.create(folder, with_pip=False)
    home = Path(folder).resolve()
    site = next(home.glob("lib*/python*/site-packages"), home / "Lib" / "site-packages")
    for path in map(Path, sys.path):
        if path.name in ("site-packages", "dist-packages"):
            _link_all(path, site, but=("torchbus", without))
    for package in packages:
        (site / package).symlink_to(Path(sys.modules[package].__file__ or "").parent)
    return str(
        next(
            path
            for path in (home / "bin" / "python", home / "Scripts" / "python.exe")
            if path.exists()
        )
    )


def _link_all(installed: Path, site: Path, but: tuple[str, ...]) -> None:
    """Link what is installed, unless its name begins so or something of that name is there."""
    for entry in installed.iterdir():
        left_out = entry.name.startswith(but) or entry.suffix in (".pth", ".egg-link")
        if not left_out and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
