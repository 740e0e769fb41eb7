"""Requests from outside the loop: a signal, a call, the clock. Rank 0 decides for all ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType

from torchbus.plugin import Context, UsageError, expect

from torchbus_strategy.decisions import Decisions, clock_seconds

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
SIGNALLED = "checkpoint/signal"


class Requests:
    """The actions that are requested for the next boundary.

    ``save`` is True if a checkpoint is to be written. If ``leave`` is not 0, all ranks then exit
    with this status, 128 + the signal's number. ``hears_signals`` is True if the session began in
    the main thread, as Python handles signals only there.
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
        self._decisions = Decisions(session, "checkpoint", self._decide)
        self.save = False
        self.leave = 0
        self.hears_signals = threading.current_thread() is threading.main_thread()
        if self.hears_signals:
            self._listen()

    # At a boundary -------------------------------------------------------------------------------

    def look(self) -> None:
        """Update ``save`` and ``leave`` at a boundary, which every rank reaches."""
        decision = self._decisions.look()
        if decision is not None:
            save, leave = decision
            self.save |= save
            self.leave = self.leave or leave

    def saved(self) -> None:
        self.save = False

    def ask(self, number: int = signal.SIGUSR1) -> None:
        """Request the action of a signal. Any thread of any rank may call this, repeatedly."""
        if self._signal:
            return
        self._signal = number
        if not self._session.is_main and self._session.job is not None:
            threading.Thread(target=self._publish, args=(number,), name="torchbus-signal").start()

    def _decide(self) -> tuple[bool, int]:
        """Return whether to save, and the exit status to leave with, or 0."""
        number = self._signal or self._signal_elsewhere()
        if not number and self._ends_s is not None and time.monotonic() >= self._ends_s:
            number = signal.SIGUSR1
        return self._time_is_up(), 128 + number if number else 0

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
        """Request a checkpoint at the first signal, and obey a second signal at once.

        A signal with which the guard ends this rank is obeyed at once, too.
        """
        job = self._session.job
        if os.getpid() != self._pid:  # a DataLoader worker
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
        """Report a signal to rank 0, in a thread, as the main thread may be using the store."""
        with contextlib.suppress(RuntimeError, AssertionError):
            self._session.world.shared.set(SIGNALLED, str(int(number)))


def seconds(time_limit: str | timedelta) -> float:
    """Convert ``"1:30:00"``, as SLURM writes times, or a timedelta. Raises UsageError."""
    limit: float | None = None
    if isinstance(time_limit, timedelta):
        limit = time_limit.total_seconds()
    elif isinstance(time_limit, str):
        limit = clock_seconds("time_limit", time_limit)
    if limit is None:
        raise UsageError(
            f"time_limit={time_limit!r}: it must be a timedelta, or a string such as '30:00',"
            " '11:50:00' or '1-12:00:00'"
        )
    if not limit > 0:
        raise UsageError(f"time_limit={time_limit!r}: it must be more than 0 seconds")
    return limit


@dataclass
class When:
    """A checkpoint is due at each multiple of these numbers of steps and of epochs.

    It is also due ``every_minutes`` after the last checkpoint. If nothing is given, ``is_default``
    is True, and a checkpoint is due after every epoch.
    """

    every_n_steps: int | None = None
    every_n_epochs: int | None = None
    every_minutes: float | None = None
    is_default: bool = False
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
            self.every_n_epochs, self.is_default = 1, True

    def is_due(self, steps: int, epochs: int) -> bool:
        """Whether a checkpoint is due by the counts, which are equal on all ranks."""
        return _passed(self.every_n_steps, self._steps, steps) or _passed(
            self.every_n_epochs, self._epochs, epochs
        )

    @property
    def time_is_up(self) -> bool:
        """Whether a checkpoint is due by the clock of this rank."""
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
