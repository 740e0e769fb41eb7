"""Shows a rank that is behind the files and folders that rank 0 saw at the same place."""

from __future__ import annotations

import base64
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from os import stat as status_of
from tempfile import TemporaryFile
from typing import IO, Any

from torchbus.plugin import Context

from torchbus_rank0.changes import Changes
from torchbus_rank0.path_states import PathState, small_content
from torchbus_rank0.whole_files import absolute, everywhere

CLOCKS_S = 2.0  # the possible difference between the clocks of this process and of its disk


class Seeing:
    """Replaces functions that look at files, on ranks other than 0.

    ``is_shared`` returns whether rank 0's changes of a path concern this call. Files that have not
    changed since the session began are read directly.
    """

    def __init__(
        self, session: Context, changes: Changes, is_shared: Callable[[str], bool]
    ) -> None:
        self._changes = changes
        self._is_shared = is_shared
        self._began = time.time() - CLOCKS_S
        made: dict[str, Callable[[Any], object]] = {
            "stat": partial(self._stats, _differs),
            "lstat": partial(self._stats, _is_missing),
            "listdir": self._lists,
            "scandir": self._scans,
        }
        both = [one for name, make in made.items() for one in everywhere(os, name, make)]
        session.seams.replace(both, session.on_close)

    def read(self, file: Any, make: Callable[..., IO[Any]]) -> IO[Any]:
        """Open a file for reading."""
        path = absolute(file)
        present, is_missing = small_content(path), False  # read first: rank 0 may change it now
        if self._changes.has_changed(path) or not self._is_old(path):
            present, is_missing = self._before_rank0(path, present)
        if is_missing:
            raise _missing(file)
        if present is None:
            return make()
        held = holding(present)
        return make(opener=lambda *_: held)

    def _before_rank0(self, path: str, present: bytes | None) -> tuple[bytes | None, bool]:
        """Return a small file's content for this rank, and whether it is missing for this rank.

        ``present`` was read before: if no change is found now, none had begun then.
        """
        entry = self._changes.seen(path)
        if entry is None:
            return present, False
        return None if entry.content is None else base64.b64decode(entry.content), not entry.status

    def content(self, path: str) -> bytes | None:
        """Return a file's content for this rank: b"" if there is no file, None if it is large."""
        is_large = os.path.exists(path)
        present, is_missing = self._before_rank0(path, small_content(path))
        return b"" if is_missing or not (present or is_large) else present

    def _is_old(self, path: str) -> bool:
        try:
            return status_of(path).st_ctime < self._began
        except OSError:
            return False

    def _stats(
        self,
        differs: Callable[[os.stat_result | None, os.stat_result], bool],
        original: Callable[..., os.stat_result],
    ) -> Callable[..., os.stat_result]:
        def status(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            now, missing = None, FileNotFoundError()
            try:
                try:
                    now = original(path, *args, **kwargs)
                except FileNotFoundError as error:
                    missing = error
                if now is None or now.st_ctime >= self._began:
                    entry = self._entry(path, kwargs)
                    before = None if entry is None else entry.found
                    if entry is not None and before is None:
                        raise _missing(path)
                    if before is not None and differs(now, before):
                        return before
                if now is None:  # the path is not read again: rank 0 may have made it since
                    raise missing
                return now
            finally:
                del missing  # its traceback would keep the callers' variables alive

        return status

    def _entry(self, path: Any, kwargs: dict[str, Any]) -> PathState | None:
        shared = absolute(path) if isinstance(path, str | os.PathLike) else ""
        if not shared or kwargs.get("dir_fd") is not None or not self._is_shared(shared):
            return None
        return self._changes.seen(shared)

    def _changed(self, folder: Any) -> dict[str, PathState]:
        """Return the names in a folder that rank 0 has changed ahead of this rank."""
        if not isinstance(folder, str | os.PathLike) or not self._is_shared(absolute(folder)):
            return {}
        entry = self._changes.seen(absolute(folder))
        if entry is not None and entry.status is None:
            raise _missing(folder)
        return self._changes.listed(absolute(folder))

    def _lists(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def listed(path: Any = ".") -> list[Any]:
            names = original(path)
            changed = self._changed(path)
            there = [name for name in names if name not in changed or changed[name].status]
            return there + [name for name in changed if changed[name].status and name not in names]

        return listed

    def _scans(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scanned(path: Any = ".") -> Any:
            with original(path) as entries:
                found = list(entries)  # read first: scandir reads a folder bit by bit
            return Scanned(found, path, self._changed(path))

        return scanned


class Scanned:
    """The result of ``os.scandir`` as it was before rank 0's changes."""

    def __init__(self, found: list[Any], folder: Any, changed: dict[str, PathState]) -> None:
        removed = {name: entry.found for name, entry in changed.items() if entry.found is not None}

        def entries() -> Iterator[Any]:
            for one in found:
                if one.name not in changed or removed.pop(one.name, None) is not None:
                    yield one
            for name, status in removed.items():
                yield RemovedEntry(os.fspath(folder), name, status)

        self._entries = entries()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Scanned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass


class RemovedEntry:
    """An ``os.DirEntry`` of a path that rank 0 has removed since."""

    def __init__(self, folder: str, name: str, status: os.stat_result) -> None:
        self.name = name
        self.path = os.path.join(folder, name)
        self._status = status

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._status.st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._status.st_mode)

    def is_symlink(self) -> bool:
        return False

    def inode(self) -> int:
        return self._status.st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._status


def _is_missing(now: os.stat_result | None, before: os.stat_result) -> bool:
    return now is None


def _differs(now: os.stat_result | None, before: os.stat_result) -> bool:
    """Whether the path now has another type or size, or is missing."""
    return now is None or (stat.S_IFMT(now.st_mode), now.st_size) != (
        stat.S_IFMT(before.st_mode),
        before.st_size,
    )


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def holding(content: bytes) -> int:
    """Open a file without a name that has this content; return its descriptor.

    The file is on the disk if the system has no files in memory.
    """
    is_linux = sys.platform == "linux"
    with os.fdopen(os.memfd_create("torchbus"), "w+b") if is_linux else TemporaryFile() as file:
        file.write(content)
        file.flush()
        file.seek(0)
        return os.dup(file.fileno())
