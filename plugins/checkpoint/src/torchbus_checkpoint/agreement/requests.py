"""Requests from outside the loop: a signal, a call, the clock. Rank 0 decides for all ranks.

No rank may save or leave while another starts a step that needs it. So rank 0 decides one step
ahead: at boundary ``n - 1`` it writes what all ranks do at boundary ``n``. The others read it at
boundary ``n``, which they can't reach before rank 0 has taken part in the step between. They skip
most boundaries: each decision names the next boundary to look at, a quarter of a second later."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import TypedDict, cast

from torchbus.plugin import Context, UsageError, expect

from torchbus_checkpoint.agreement.exchange import wait_for
from torchbus_checkpoint.errors import CheckpointError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LOOK_EVERY_S = 0.25
MAX_STRIDE = 1000
MAX_DECISIONS = 1000  # decisions in the store: no rank is so many boundaries behind rank 0
SIGNALLED = "checkpoint/signal"


class Decision(TypedDict):
    """``next`` is the next boundary at which the ranks look."""

    save: bool
    leave: int
    next: int


class Requests:
    """What the ranks have to do at the next boundary.

    ``save``: write a checkpoint. ``leave``: then leave with this exit status, 128 + the signal's
    number. ``hears_signals``: Python lets only the main thread handle them.
    """

    def __init__(
        self, session: Context, time_is_up: Callable[[], bool], time_limit_s: float | None
    ) -> None:
        self._session = session
        self._time_is_up = time_is_up
        self._ends_s = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._signal = 0
        self._pid = os.getpid()
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._boundary = 0
        self._next = 2
        self._published: deque[str] = deque()
        self._decision: Decision = {"save": False, "leave": 0, "next": self._next}
        self._begun_s = time.monotonic()
        self.save = False
        self.leave = 0
        self.hears_signals = threading.current_thread() is threading.main_thread()
        if self.hears_signals:
            self._listen()

    # At a boundary -------------------------------------------------------------------------------

    def look(self) -> None:
        """Follow the decision for this boundary. Every rank is, or will be, here."""
        self._boundary += 1
        if self._session.world_size == 1:
            return self._take(self._decide())
        if self._boundary == self._next:
            self._take(self._decision if self._session.is_main else self._read(self._next))
        if self._session.is_main and self._boundary == self._next - 1:
            self._decision = self._decide()
            self._report_all(_key(self._next), self._decision)

    def saved(self) -> None:
        self.save = False

    def ask(self, number: int = signal.SIGUSR1) -> None:
        """Request what this signal requests. Any thread of any rank may call it, and again."""
        if self._signal:
            return
        self._signal = number
        if not self._session.is_main and self._session.job is not None:
            threading.Thread(target=self._publish, args=(number,), name="torchbus-signal").start()

    def _decide(self) -> Decision:
        number = self._signal or self._signal_elsewhere()
        if not number and self._ends_s is not None and time.monotonic() >= self._ends_s:
            number = signal.SIGUSR1
        return {
            "save": self._time_is_up(),
            "leave": 128 + number if number else 0,
            "next": self._next + self._stride(),
        }

    def _report_all(self, key: str, decision: Decision) -> None:
        store = self._session.world.shared
        store.set(key, json.dumps(decision))
        self._published.append(key)
        if len(self._published) > MAX_DECISIONS:
            store.delete_key(self._published.popleft())

    def _take(self, decision: Decision) -> None:
        self.save |= decision["save"]
        self.leave = self.leave or decision["leave"]
        self._next = decision["next"]

    def _stride(self) -> int:
        """Return how many boundaries pass in about a quarter of a second."""
        seconds = (time.monotonic() - self._begun_s) / self._boundary
        return max(1, min(MAX_STRIDE, int(LOOK_EVERY_S / max(seconds, 1e-6))))

    def _read(self, boundary: int) -> Decision:
        session, key = self._session, _key(boundary)
        found = wait_for(session, key)
        if found is None:
            raise CheckpointError(
                f"rank 0 did not reach the end of step {boundary}, where rank {session.rank}"
                " is waiting for it"
            )
        return cast(Decision, json.loads(found[0]))

    # Signals -------------------------------------------------------------------------------------

    def _signal_elsewhere(self) -> int:
        """Return a signal that another rank has received, or 0."""
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
        """Request a checkpoint at the first signal; obey a second one at once.

        A signal with which the guard ends this rank is obeyed at once, too.
        """
        job = self._session.job
        if os.getpid() != self._pid:  # this is a worker of a loader
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._signal or (job is not None and job.is_ending):
            self._obey(number, frame)
        else:
            self.ask(number)

    def _obey(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            raise SystemExit(128 + number)

    def _publish(self, number: int) -> None:
        """Tell rank 0. Runs in a thread: the main one may be in a call to the store."""
        with contextlib.suppress(RuntimeError, AssertionError):
            self._session.world.shared.set(SIGNALLED, str(int(number)))


def _key(boundary: int) -> str:
    return f"checkpoint/asked/{boundary}"


def seconds(time_limit: str | timedelta) -> float:
    """Convert ``"1:30:00"``, as SLURM writes it, or a timedelta. Raises UsageError."""
    if isinstance(time_limit, timedelta):
        limit = time_limit.total_seconds()
    elif isinstance(time_limit, str) and re.fullmatch(r"(\d+-)?(\d+:)?\d+:\d+", time_limit):
        days, _, clock = time_limit.rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        limit = int(days or 0) * 86400.0 + sum(
            part * 60**power for power, part in enumerate(reversed(parts))
        )
    else:
        raise UsageError(
            f"time_limit={time_limit!r}: it must be a timedelta, or a string such as '30:00',"
            " '11:50:00' or '1-12:00:00'"
        )
    if not limit > 0:
        raise UsageError(f"time_limit={time_limit!r}: it must be more than 0 seconds")
    return limit


@dataclass
class When:
    """A checkpoint is due after each of these intervals, counted from the last checkpoint.

    If none is given, one is due after every epoch.
    """

    every_n_steps: int | None = None
    every_n_epochs: int | None = None
    every_minutes: float | None = None
    _steps: int = 0
    _epochs: int = 0
    _time_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        for name, types, expected in (
            ("every_n_steps", (int, type(None)), "a number of optimizer steps"),
            ("every_n_epochs", (int, type(None)), "a number of epochs"),
            ("every_minutes", (int, float, type(None)), "a number of minutes"),
        ):
            value = getattr(self, name)
            expect(name, value, types, expected)
            if value is not None and not value > 0:
                raise UsageError(f"{name}={value}: it must be more than 0")
        if (
            self.every_n_steps is None
            and self.every_n_epochs is None
            and self.every_minutes is None
        ):
            self.every_n_epochs = 1

    def is_due(self, steps: int, epochs: int) -> bool:
        """Whether one is due by the counts, which are equal on all ranks."""
        return _passed(self.every_n_steps, self._steps, steps) or _passed(
            self.every_n_epochs, self._epochs, epochs
        )

    @property
    def time_is_up(self) -> bool:
        """Whether one is due by the clock of this rank."""
        return (
            self.every_minutes is not None
            and time.monotonic() - self._time_s >= 60.0 * self.every_minutes
        )

    def describe(self) -> str:
        """Describe the intervals, as in "every 100 steps, every 10 minutes"."""
        given = (
            (self.every_n_steps, "steps"),
            (self.every_n_epochs, "epochs"),
            (self.every_minutes, "minutes"),
        )
        return ", ".join(f"every {value:g} {what}" for value, what in given if value is not None)

    def saved(self, steps: int, epochs: int) -> None:
        self._steps, self._epochs, self._time_s = steps, epochs, time.monotonic()


def _passed(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of ``every`` lies after ``before``, up to ``now``.

    >>> [_passed(5, 4, now) for now in (4, 5, 6)]
    [False, True, True]
    """
    return every is not None and now // every > before // every
