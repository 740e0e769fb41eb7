"""What a file held before rank 0's last changes to it: a rank that is behind reads that.

Rank 0 may have come to its next change of a file while another rank is still to read what the last
one has written. So it puts what a small file holds into the job's store before it changes it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torchbus.plugin import Context
    from torchbus.runtime.services import JobService

LARGEST = 1 << 18  # bytes of a file whose content is held, and of all that is held of one
ENTRIES = 8  # of the last changes to a path


class Entry(NamedTuple):
    """``number``: of the change to this path. ``sequence``: of the change among those to all.
    ``position``: rank 0's in the loop. ``size``: the file's, if the change only appends.
    """

    number: int
    sequence: int
    position: list[int]
    size: int | None
    content: str


class Before:
    """The contents of files before rank 0's last changes to them, in the job's store."""

    def __init__(self, session: Context, job: JobService) -> None:
        self._session = session
        self._job = job
        self._entries: dict[str, list[Entry]] = {}  # of rank 0

    def hold(self, path: str, number: int, sequence: int, appends: bool) -> None:
        """Put what a file holds into the store, on rank 0, before a change to it."""
        held = _held(path, appends)
        if held is None:
            return
        entry = Entry(number, sequence, list(self._job.position), *held)
        entries = [*self._entries.get(path, []), entry][-ENTRIES:]
        while len(entries) > 1 and sum(len(one.content) for one in entries) > LARGEST:
            del entries[0]
        self._entries[path] = entries
        self._session.world.shared.set(f"before/{path}", json.dumps(entries))

    def content(self, path: str, is_next: Callable[[int, int], bool]) -> bytes | None:
        """Return what this rank must read in place of the file, or None.

        ``is_next``: whether this rank is still to come to a change, by its two numbers.
        """
        there = None
        with suppress(RuntimeError):  # the store goes with rank 0
            there = self._session.world.shared.read(f"before/{path}")
        entries = [Entry(*one) for one in json.loads(there)] if there else []
        mine = list(self._job.position)
        ahead = [
            one for one in entries if one.position >= mine and is_next(one.number, one.sequence)
        ]
        if not ahead:
            return None
        first = ahead[0]
        if first.size is None:
            return base64.b64decode(first.content)
        only_appended = all(one.size is not None for one in ahead)
        return _beginning(path, first.size) if only_appended else None


def _held(path: str, appends: bool) -> tuple[int | None, str] | None:
    """Return the size of a regular file, or what a small one holds."""
    with suppress(OSError):
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return None
        if appends:
            return found.st_size, ""
    content = small_content(path)
    return None if content is None else (None, base64.b64encode(content).decode())


def small_content(path: str) -> bytes | None:
    """Return what a regular file holds, unless it is large."""
    with suppress(OSError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST:
            with io.FileIO(path) as file:
                return file.read()
    return None


def _beginning(path: str, size: int) -> bytes | None:
    with suppress(OSError), io.FileIO(path) as file:
        return file.read(size)
    return None
