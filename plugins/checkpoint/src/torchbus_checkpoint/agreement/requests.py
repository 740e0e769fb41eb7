"""What comes from outside: a scheduler's signal, the clock. Rank 0 decides for all, at a boundary that all know.

No rank may save or leave while another goes on to a step that needs it. So between two steps, when it is at boundary ``n - 1``, rank 0
writes what is to be done at boundary ``n``; the others read it when they get there, which they can't before rank 0 has taken part
in the step between. Not every boundary is looked at: what is read at one says which is the next, a quarter of a second later.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

from torchbus.plugin import Context, UsageError

from torchbus_checkpoint.errors import CheckpointError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LOOK_EVERY_S = 0.25
MAX_STRIDE = 1000
SIGNALLED = "checkpoint/signal"


class Requests:
    """``save``: a checkpoint is asked for. ``leave``: the exit status to leave with after it, 128 + the signal's number."""

    def __init__(self, session: Context, time_is_up: Callable[[], bool], time_limit_s: float | None) -> None:
        self._session = session
        self._time_is_up = time_is_up
        self._ends_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._signal = 0
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}
        self._boundary = 0
        self._next = 2
        self._asked: dict[str, Any] = {}
        self._begun_s = time.monotonic()
        self.save = False
        self.leave = 0
        if threading.current_thread() is threading.main_thread():
            self._listen()

    # At a boundary ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Every rank is, or will be, at this boundary."""
        self._boundary += 1
        if self._session.world_size == 1:
            return self._take(self._decide())
        if self._boundary == self._next:
            self._take(self._asked if self._session.is_main else self._read(self._next))
        if self._session.is_main and self._boundary == self._next - 1:
            self._asked = self._decide()
            self._session.world.shared.set(_key(self._next), json.dumps(self._asked))

    def saved(self) -> None:
        self.save = False

    def _decide(self) -> dict[str, Any]:
        number = self._signal or self._signal_elsewhere()
        if not number and self._ends_s is not None and time.monotonic() >= self._ends_s:
            number = signal.SIGUSR1
        return {"save": self._time_is_up(), "leave": 128 + number if number else 0, "next": self._next + self._stride()}

    def _take(self, asked: dict[str, Any]) -> None:
        self.save |= asked["save"]
        self.leave = self.leave or asked["leave"]
        self._next = asked["next"]

    def _stride(self) -> int:
        """So many boundaries are about a quarter of a second."""
        seconds = (time.monotonic() - self._begun_s) / self._boundary
        return max(1, min(MAX_STRIDE, int(LOOK_EVERY_S / max(seconds, 1e-6))))

    def _read(self, boundary: int) -> dict[str, Any]:
        session, key = self._session, _key(boundary)
        assert session.job is not None
        if not session.job.wait_until(lambda store: bool(store.check([key])), session.timeout.total_seconds()):
            raise CheckpointError(f"rank 0 did not come to the end of step {boundary}, where rank {session.rank} waits for it")
        return dict(json.loads(session.world.shared.get(key)))

    # Signals ---------------------------------------------------------------------------------------------------

    def _signal_elsewhere(self) -> int:
        """One that another rank has received."""
        store = self._session.world.store
        return int(store.get(SIGNALLED)) if store is not None and store.check([SIGNALLED]) else 0

    def _listen(self) -> None:
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._received)
        job = self._session.job
        if job is not None:
            job.leave_signals(set(SIGNALS))
        self._session.on_close.callback(self._stop)

    def _stop(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        if self._session.job is not None:
            self._session.job.leave_signals(set())

    def _received(self, number: int, frame: FrameType | None) -> None:
        """The first one asks for a checkpoint; a second one, or one with which the guard ends this rank, is obeyed at once."""
        job = self._session.job
        if os.getpid() != self._pid:  # a worker of a loader
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._signal or (job is not None and job.is_ending):
            self._obey(number, frame)
        else:
            self._signal = number
            if job is not None and not self._session.is_main:
                threading.Thread(target=self._tell, args=(number,), name="torchbus-signal").start()

    def _obey(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            raise SystemExit(128 + number)

    def _tell(self, number: int) -> None:
        """From a thread: the main one may be in the middle of a word with the store."""
        with contextlib.suppress(RuntimeError, AssertionError):
            self._session.world.shared.set(SIGNALLED, str(int(number)))


def _key(boundary: int) -> str:
    return f"checkpoint/asked/{boundary}"


def seconds(time_limit: str | timedelta) -> float:
    """``"1:30:00"``, as SLURM writes it, or a timedelta. Raises UsageError."""
    if isinstance(time_limit, timedelta):
        limit = time_limit.total_seconds()
    elif isinstance(time_limit, str) and re.fullmatch(r"(\d+-)?(\d+:)?\d+:\d+", time_limit):
        days, _, clock = time_limit.rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        limit = int(days or 0) * 86400.0 + sum(part * 60**power for power, part in enumerate(reversed(parts)))
    else:
        raise UsageError(f"time_limit={time_limit!r}: it must be a timedelta, or a string such as '30:00', '11:50:00' or '1-12:00:00'")
    if not limit > 0:
        raise UsageError(f"time_limit={time_limit!r}: it must be more than nothing")
    return limit
