"""Rank 0's changes to files, numbered for each path in the job's store.

A rank that reaches a change looks for rank 0's change in the store. There is no collective, because
a save may be conditional. The store holds one value for each path and each line of the script,
however often that line changes a file.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torchbus.plugin import users_frame

from torchbus_launch.job import ENDED
from torchbus_rank0.path_states import Before, PathState

if TYPE_CHECKING:
    from torchbus.plugin import Context, SharedStore
    from torchbus.runtime.services import JobService

WAIT_FOR_RANK0_S = 20.0
LEAVING_WAITS_S = 5.0  # while a rank handles an exception, since rank 0 may never get there
ASKS_AFTER_S = 0.1
HISTORY = 32  # how many of the last changes to a path are stored
ELSEWHERE = "elsewhere"


class Change(NamedTuple):
    """A change of a path by rank 0.

    ``backwards`` is how many backwards rank 0 had counted. ``failure`` has the number and text of
    its OSError; it is "" for another error, and None for success. ``is_open`` is True while rank 0
    writes the file. ``sequence`` is the number among rank 0's changes to all paths.
    """

    kind: str
    backwards: int
    failure: tuple[int, str] | str | None
    is_open: bool
    sequence: int = 0


class WaitResult(NamedTuple):
    """A rank's result of waiting for a change.

    ``change`` is rank 0's change, if there is one. Otherwise, ``is_local`` is True if only this
    rank makes the change, and False if rank 0 has changed the path in another way, to which this
    rank has reacted. ``number`` is that of rank 0's change. ``why`` says how this rank knows that
    rank 0 has passed this place.
    """

    change: Change | None
    is_local: bool
    number: int = 0
    why: str = ""


class Changes:
    def __init__(self, session: Context, job: JobService) -> None:
        self._session = session
        self._job = job
        self._handled_before = sys.exc_info()[1]
        self._lock = threading.RLock()
        self._made: dict[str, tuple[int, list[Change]]] = {}  # by rank 0
        self._at_line: Counter[tuple[str, int]] = Counter()
        self._next: Counter[str] = Counter()
        self._sequence = 0  # on rank 0, of the last change; on others, of the last one reached
        self._before = Before(session, job)
        self._local_lines: set[str] = set()
        self._has_ended = False
        self._rank0s = ""  # the path that rank 0 changed at the line where this rank is

    def comes(self, path: str, appends: bool = False) -> None:
        """Let rank 0 store the state of a path before it changes it."""
        with self._lock:
            number, _ = self._made.get(path, (0, []))
            self._before.hold(path, number, self._sequence + 1, appends)

    def seen(self, path: str) -> PathState | None:
        """Return the state that another rank sees of a path that rank 0 changed ahead of it."""
        return self._before.first(path, self._is_next(path))

    def listed(self, folder: str) -> dict[str, PathState]:
        """Return the states that another rank sees, by names in a folder that rank 0 changed."""
        return self._before.names(folder, self._is_next)

    def has_changed(self, path: str) -> bool:
        """Whether this rank has reached a change of the path."""
        return path in self._next

    def _is_next(self, path: str) -> Callable[[int, int], bool]:
        return lambda number, sequence: (
            number >= self._next.get(path, 0) and sequence > self._sequence
        )

    def publish(
        self, kind: str, path: str, failure: tuple[int, str] | str | None, is_open: bool = False
    ) -> int:
        """Record a change of rank 0 for the others; return its number."""
        line, backwards = f"{kind} {_line()}", self._job.backwards
        with self._lock:
            number, changes = self._made.get(path, (0, []))
            self._sequence += 1
            change = Change(kind, backwards, failure, is_open, self._sequence)
            changes = [*changes, change][-HISTORY:]
            self._made[path] = number + 1, changes
            self._at_line[line, backwards] += 1
            self._session.world.shared.set_all(
                {
                    f"file/{path}": json.dumps(self._made[path]),
                    f"line/{line}": json.dumps([backwards, self._at_line[line, backwards], path]),
                }
            )
        return number

    def close(self, path: str, number: int) -> None:
        """Record that rank 0 has closed a file."""
        with self._lock:
            total, changes = self._made[path]
            index = number - (total - len(changes))
            if index >= 0:
                changes[index] = changes[index]._replace(is_open=False)
                self._session.world.shared.set(f"file/{path}", json.dumps((total, changes)))

    def find(self, kind: str, path: str) -> WaitResult:
        """Wait, on another rank, until rank 0 has made this change or has passed this place."""
        line, mine = f"{kind} {_line()}", self._job.backwards
        self._at_line[line, mine] += 1
        found, began_s, asked = WaitResult(None, True), time.monotonic(), self._job.asks_rank0()

        def is_known(store: SharedStore) -> bool:
            nonlocal found
            waited_s = time.monotonic() - began_s
            patient = waited_s < ASKS_AFTER_S and line not in self._local_lines
            passed = "" if patient else self._why_passed(store, line, mine) or next(asked)
            found = self._look(store, kind, path, mine)._replace(why=passed)
            return bool(found.change or passed) or self._is_later(store, path, mine)

        if not self._waited(is_known):
            return WaitResult(None, True)
        if found.is_local and line not in self._local_lines:
            self._local_lines.add(line)
            self._say(kind, path, found.why)
        return found

    def end(self) -> None:
        """Record that the session ends."""
        self._has_ended = True

    def wait_until_closed(self, path: str, number: int) -> None:
        """Wait until rank 0 has closed the file that it opened by this change.

        After the block, this does not wait, because a variable of the script may hold it open.
        """
        if self._has_ended:
            return
        asked, began_s = self._job.asks_rank0(), time.monotonic()

        def is_closed(store: SharedStore) -> bool:
            passed = time.monotonic() - began_s > ASKS_AFTER_S and bool(next(asked))
            total, changes = _changes(store, path)
            index = number - (total - len(changes))
            return passed or index < 0 or not changes[index].is_open

        self._waited(is_closed)

    def _waited(self, met: Callable[[SharedStore], bool]) -> bool:
        """Wait for rank 0; False if this rank must stop, whose ``finally`` writes separately."""
        handled = sys.exc_info()[1]
        is_leaving = handled is not None and handled is not self._handled_before
        longest_s = LEAVING_WAITS_S if is_leaving else WAIT_FOR_RANK0_S
        try:
            self._job.wait_until(met, min(longest_s, self._session.timeout.total_seconds()))
        except RuntimeError:  # also from the store, which ends with rank 0
            return False
        except BaseException:
            if not self._job.is_ending:
                raise
        return not self._job.is_ending

    def _look(self, store: SharedStore, kind: str, path: str, mine: int) -> WaitResult:
        total, changes = _changes(store, path)
        first = total - len(changes)
        if self._next[path] < first:  # rank 0 is far ahead
            self._next[path] += 1
            return WaitResult(Change(kind, mine, None, False), False)
        for number in range(self._next[path], total):
            change = changes[number - first]
            if change.kind == kind and change.backwards == mine:
                self._next[path] = number + 1
                self._sequence = max(self._sequence, change.sequence)
                return WaitResult(change, False, number)
        return WaitResult(None, is_local=total <= self._next[path])

    def _is_later(self, store: SharedStore, path: str, mine: int) -> bool:
        """Whether rank 0 has changed the path after a backward that this rank has not reached."""
        _, changes = _changes(store, path)
        return bool(changes) and changes[-1].backwards > mine

    def _why_passed(self, store: SharedStore, line: str, mine: int) -> str:
        """Return ELSEWHERE if rank 0 was at this line at least as often as this rank, else ""."""
        there = store.read(f"line/{line}")
        backwards, times, self._rank0s = json.loads(there) if there else (-1, 0, "")
        return ELSEWHERE if (backwards, times) >= (mine, self._at_line[line, mine]) else ""

    def note_once(self, text: str) -> None:
        if text not in self._local_lines:
            self._local_lines.add(text)
            self._job.note(f"torchbus: {text} ({_line()})")

    def _say(self, kind: str, path: str, why: str) -> None:
        """Let rank 0 warn of a local change, unless rank, process or host explain another path.

        While this rank leaves by an exception, there is no warning: the exception is shown first.
        """
        rank = self._session.rank
        if why == ENDED:
            self._job.note(
                f"torchbus: rank 0 ended its loop before the {kind} of {path} that rank {rank}"
                f" makes at {_line()}"
            )
        elif sys.exc_info()[1] is None and (
            why != ELSEWHERE or not is_of_rank(path, self._rank0s, rank)
        ):
            text = LOCAL.format(kind=kind, path=path, rank=rank)
            self._job.note(f"torchbus: {text} ({_line()})", if_well=True)


LOCAL = (
    "rank 0 made no {kind} of {path}, so rank {rank} does: if the clock or chance names the path,"
    " use rank 0's name, s.all_gather_object(name)[0]; if that depends on the rank, give each rank"
    " a different path"
)


def is_of_rank(path: str, rank0s: str, rank: int) -> bool:
    """Whether a path differs from rank 0's by the rank, the process or the host."""
    mine, theirs = (re.split("([0-9]+)", one) for one in (path, rank0s))
    own = {str(rank), str(os.getpid())}
    return socket.gethostname() in path or (
        len(mine) == len(theirs)
        and all(one == other or one in own for one, other in zip(mine, theirs, strict=True))
    )


def _changes(store: SharedStore, path: str) -> tuple[int, list[Change]]:
    there = store.read(f"file/{path}")
    total, changes = json.loads(there) if there else (0, [])
    return total, [Change(*change) for change in changes]


def _line() -> str:
    frame, _ = users_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
