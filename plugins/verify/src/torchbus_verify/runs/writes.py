"""Intercepts the writes of a run by Python's audit events.

Inside the run's folder, the mirror replaces its link by a real file. A write outside of the folder
ends the run, because two runs would share that file. Writes of C code raise no event;
``torch.save`` is patched separately.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchbus_verify._compat import OPEN_WRITER

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux

TO_CHANGE = {
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}
"""Audit events, with the numbers of their arguments that are changed paths."""
LINKS_THEMSELVES = ("os.remove", "os.rename", "os.rmdir")
ANYWHERE = ("/dev", "/proc", "/sys")


class WritesOutside(BaseException):
    """Raised for a write outside of the run's folder. ``except Exception`` does not catch it."""


class RunWrites:
    """Watches the writes of one run. ``say`` is called with a path outside, which ends the run."""

    def __init__(self, mirror: FolderMirror, folder: Path, say: Callable[[str], None]) -> None:
        self._mirror, self._say = mirror, say
        home = os.path.expanduser("~")
        caches = [os.path.join(home, name) for name in (".cache", ".config", ".triton", ".nv")]
        free = [*ANYWHERE, *caches, tempfile.gettempdir(), str(folder)]
        self._free = tuple(os.path.realpath(one) for one in free)
        self._busy = False
        self._pid = os.getpid()

    def install(self) -> None:
        """Install the audit hook, which can't be removed from the process and its forks."""
        sys.dont_write_bytecode = True
        sys.addaudithook(self._audit)
        original = getattr(torch.serialization, OPEN_WRITER)

        def open_writer(target: object) -> object:
            if isinstance(target, str | os.PathLike):
                self._change(os.fspath(target), keep=False)
            return original(target)

        setattr(torch.serialization, OPEN_WRITER, open_writer)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC):
                self._change(path, keep=not flags & os.O_TRUNC)
        elif event in TO_CHANGE:
            for number in TO_CHANGE[event]:
                self._change(arguments[number], itself=event not in LINKS_THEMSELVES)

    def _change(self, path: object, *, keep: bool = True, itself: bool = True) -> None:
        if self._busy or not isinstance(path, str | bytes | os.PathLike):
            return
        self._busy = True
        try:
            self._make_way(os.fsdecode(path), keep, itself)
        finally:
            self._busy = False

    def _make_way(self, given: str, keep: bool, itself: bool) -> None:
        if given == ":memory:":
            return
        path = os.path.join(os.getcwd(), given)
        self._unfold_before_parents(path)
        place = os.path.join(self._real_folder(path), os.path.basename(path))
        if self._mirror.contains(place):
            self._mirror.make_real(place if itself else os.path.dirname(place), keep=keep)
        elif self._mirror.is_original(place) or not self._is_free(place):
            self._say(place)
            raise WritesOutside(place)

    def _is_free(self, place: str) -> bool:
        return any(_is_below(place, folder) for folder in self._free)

    def _unfold_before_parents(self, path: str) -> None:
        """Resolve `..`, which behind a link of the mirror would lead to the script's folder."""
        parts = path.split(os.sep)
        for number, part in enumerate(parts):
            before = os.path.normpath(os.sep.join(parts[:number]) or os.sep)
            if part == os.pardir and self._mirror.contains(before):
                self._mirror.make_real(os.path.join(before, "inside"))

    def _real_folder(self, path: str) -> str:
        """Return a path's target without following the mirror's links, which are to be replaced."""
        folder = os.path.normpath(os.path.dirname(path))
        return folder if self._mirror.contains(folder) else os.path.realpath(folder)


class FolderMirror:
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

        With ``keep=False``, the file's contents are not copied, since they will be overwritten. A
        lock is held, because all ranks of a run share the mirror.
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
    target, folder = Path(os.path.realpath(link)), link.with_name(f".{link.name}.unfolded")
    folder.mkdir()
    _link_all(target, folder)
    _exchange(folder, link)


def _exchange(folder: Path, link: Path) -> None:
    """Put a folder in the place of a link atomically: another rank may be importing from it."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    paths = (AT_FDCWD, os.fsencode(folder), AT_FDCWD, os.fsencode(link))
    if swap is not None and swap(*paths, RENAME_EXCHANGE) == 0:
        folder.unlink()
    else:
        link.unlink()
        folder.rename(link)


def _copy(link: Path, keep: bool) -> None:
    target = os.path.realpath(link)
    link.unlink()
    if keep:
        shutil.copy2(target, link)
