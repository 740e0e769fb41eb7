"""The end of a loop after a number of steps, or some time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta

from torch.optim import Optimizer
from torchbus.plugin import Answer, Context, UsageError, hookimpl

from torchbus_strategy.ahead import Decisions


class MaxSteps:
    """Calls ``stop`` once the loop has made so many real steps, those of earlier runs included.

    Whatever the loop then does, no further step begins. ``has_left_out``: it has called one.
    """

    def __init__(self, session: Context, max_steps: int, stop: Callable[[], None]) -> None:
        self._steps = session.steps.follow()
        self._max_steps = max_steps
        self._stop = stop
        self.has_left_out = False

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._steps.count >= self._max_steps:
            self._stop()

    @hookimpl
    def step_called(self, optimizer: Optimizer) -> Answer | None:
        if self._steps.count < self._max_steps or not self._steps.has_stepped(optimizer):
            return None
        self._stop()
        self.has_left_out = True
        return Answer()


class MaxTime:
    """Calls ``stop`` after so many seconds by rank 0's clock, on all ranks after the same step."""

    def __init__(self, session: Context, seconds: float, stop: Callable[[], None]) -> None:
        ends_s = time.monotonic() + seconds
        self._stop = stop
        self._decisions = Decisions(session, "earlystop", lambda: time.monotonic() >= ends_s)

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._decisions.look():
            self._stop()


CLOCK = r"(?:(?:(\d+):)?(\d+):)?(\d+):(\d+)"
UNITS_S = (86400, 3600, 60, 1)


def seconds(max_time: str | float | timedelta) -> float:
    """Convert "02:00:00", "1:02:00:00" with days, a timedelta or seconds. Raises UsageError."""
    found = re.fullmatch(CLOCK, max_time) if isinstance(max_time, str) else None
    if found is not None:
        parts = [int(part or 0) for part in found.groups()]
        limit = float(sum(part * unit for part, unit in zip(parts, UNITS_S, strict=True)))
    elif isinstance(max_time, timedelta):
        limit = max_time.total_seconds()
    elif isinstance(max_time, int | float) and not isinstance(max_time, bool):
        limit = float(max_time)
    else:
        raise UsageError(
            f"max_time={max_time!r}: it must be a string such as '02:00:00' or '1:12:00:00', a"
            " timedelta, or a number of seconds"
        )
    if not limit > 0:
        raise UsageError(f"max_time={max_time!r}: it must be more than 0 seconds")
    return limit
