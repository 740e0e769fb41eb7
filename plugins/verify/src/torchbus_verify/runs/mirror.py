"""A copy-on-write working folder for one run: reads come from the script's folder.

It begins as links to everything in the folder. What is about to be written is first made real: a
folder becomes a folder of links, a file a copy. So a run costs what it writes, not what it reads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path


class Mirror:
    """Mirrors ``original``, which is never written to, in ``place``."""

    def __init__(self, original: Path, place: Path) -> None:
        self.original, self.place = original.resolve(), place.resolve()

    def make(self) -> None:
        """Create links to the present contents of the folder."""
        self.place.mkdir(parents=True)
        _link_all(self.original, self.place)

    def contains(self, path: str) -> bool:
        """Whether a path without links is inside the place."""
        return _is_below(path, str(self.place))

    def is_original(self, path: str) -> bool:
        """Whether a path without links is inside the script's own folder."""
        return _is_below(path, str(self.original))

    def make_real(self, path: str, *, keep: bool = True) -> None:
        """Replace the mirror's links along ``path`` and at it by real files, before a write.

        ``keep=False``: the file's contents are about to be overwritten.

        The ranks of a run have one place, and come here at once.
        """
        with open(f"{self.place}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._make_real(path, keep)

    def _make_real(self, path: str, keep: bool) -> None:
        folder = self.place
        parts = os.path.relpath(path, self.place).split(os.sep)
        for part in parts[:-1]:
            folder = folder / part
            if self._is_ours(folder):
                _unfold(folder)
        last = folder / parts[-1]
        if self._is_ours(last):
            if last.is_dir():
                _unfold(last)
            else:
                _copy(last, keep)

    def written(self) -> list[Path]:
        """Return the real files, which are not links, relative to the place."""
        found = []
        for folder, folders, files in os.walk(self.place):
            folders[:] = [one for one in folders if one != "__pycache__"]
            found += [Path(folder, one) for one in files if not Path(folder, one).is_symlink()]
        return sorted(path.relative_to(self.place) for path in found)

    def _is_ours(self, path: Path) -> bool:
        return path.is_symlink() and _is_below(os.path.realpath(path), str(self.original))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _link_all(original: Path, place: Path) -> None:
    for entry in os.scandir(original):
        if Path(entry.path) != place and not _is_below(str(place), entry.path):
            os.symlink(entry.path, place / entry.name)


def _unfold(link: Path) -> None:
    target = Path(os.path.realpath(link))
    link.unlink()
    link.mkdir()
    _link_all(target, link)


def _copy(link: Path, keep: bool) -> None:
    target = os.path.realpath(link)
    link.unlink()
    if keep:
        shutil.copy2(target, link)
