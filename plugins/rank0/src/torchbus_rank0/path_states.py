"""The states of paths before rank 0's latest changes, for ranks that are still behind.

Rank 0 may reach its next change of a path before another rank has looked at the previous state. So
before each change, rank 0 puts the path's state, and a small file's content, into the job's store.
"""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from os import stat as status_of
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torchbus.plugin import Context
    from torchbus.runtime.services import JobService

LARGEST = 1 << 18  # bytes of a file whose content is stored, and of all contents of one path
ENTRIES = 8  # how many of the last changes to a path are stored
NAMES = 64  # how many changed names of a folder are stored
PATIENCE_S = 20.0  # after this time, show the real state: maybe only rank 0 makes that change


class PathState(NamedTuple):
    """The state of a path before one change of rank 0.

    Args:
        number: the number of the change among those to this path.
        sequence: its number among the changes to all paths.
        position: rank 0's position in the loop.
        status: the path's status, or None if it did not exist.
        appends: whether the change only appends.
        content: the content of a small file, or None.
    """

    number: int
    sequence: int
    position: list[int]
    status: list[int] | None
    appends: bool
    content: str | None

    @property
    def found(self) -> os.stat_result | None:
        return None if self.status is None else os.stat_result(self.status)


Entries = list[PathState]
IsNext = Callable[[int, int], bool]


class Before:
    """Stores the states of paths before rank 0's latest changes in the job's store."""

    def __init__(self, session: Context, job: JobService) -> None:
        self._session = session
        self._job = job
        self._entries: dict[str, Entries] = {}  # of rank 0
        self._names: dict[str, dict[str, Entries]] = {}  # of its folders
        self._asked: dict[tuple[str, int], float] = {}

    def hold(self, path: str, number: int, sequence: int, appends: bool) -> None:
        """Put a path's state into the store, on rank 0, before a change to it."""
        status = _status(path)
        is_file = status is not None and stat.S_ISREG(status[0])
        content = small_content(path) if is_file and not appends else None
        position = list(self._job.position)
        entry = PathState(number, sequence, position, status, appends and is_file, _coded(content))
        entries = [*self._entries.get(path, []), entry][-ENTRIES:]
        while len(entries) > 1 and sum(len(one.content or "") for one in entries) > LARGEST:
            del entries[0]
        self._entries[path] = entries
        folder, name = os.path.split(path)
        names = self._names.setdefault(folder, {})
        names.pop(name, None)
        names[name] = [one._replace(content=None) for one in entries]
        while len(names) > NAMES:
            del names[next(iter(names))]
        values = {f"before/{path}": json.dumps(entries), f"folder/{folder}": json.dumps(names)}
        self._session.world.shared.set_all(values)

    def first(self, path: str, is_next: IsNext) -> PathState | None:
        """Return the path's state before the first change that this rank has not reached yet.

        ``is_next`` returns, for the two numbers of a change, whether this rank has yet to reach it.
        """
        ahead = self._ahead(path, self._read(f"before/{path}") or [], is_next)
        if not ahead:
            return None
        first = ahead[0]
        if first.found is not None and first.appends and all(one.appends for one in ahead):
            return first._replace(content=_coded(_beginning(path, first.found.st_size)))
        return first

    def names(self, folder: str, is_next: Callable[[str], IsNext]) -> dict[str, PathState]:
        """Return, by names in a folder, the first change that this rank has not reached yet."""
        changed = self._read(f"folder/{folder}") or {}
        ahead = {
            name: self._ahead(path := os.path.join(folder, name), entries, is_next(path))
            for name, entries in changed.items()
        }
        return {name: entries[0] for name, entries in ahead.items() if entries}

    def _ahead(self, path: str, found: list[list[Any]], is_next: IsNext) -> Entries:
        mine = list(self._job.position)
        entries = [PathState(*one) for one in found]
        ahead = [
            one for one in entries if one.position >= mine and is_next(one.number, one.sequence)
        ]
        if not ahead:
            return []
        now = time.monotonic()
        asked = self._asked.setdefault((path, ahead[0].sequence), now)
        return ahead if now - asked < PATIENCE_S else []

    def _read(self, name: str) -> Any:
        with suppress(RuntimeError):  # the store ends with rank 0
            there = self._session.world.shared.read(name)
            return json.loads(there) if there else None
        return None


def _coded(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _status(path: str) -> list[int] | None:
    with suppress(OSError):
        return [int(value) for value in status_of(path)]
    return None


def small_content(path: str) -> bytes | None:
    """Return the content of a regular file, or None if it is large."""
    with suppress(OSError):
        found = status_of(path)
        if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST:
            with io.FileIO(path) as file:
                return file.read()
    return None


def _beginning(path: str, size: int) -> bytes | None:
    with suppress(OSError), io.FileIO(path) as file:
        return file.read(size)
    return None
