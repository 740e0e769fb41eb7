"""Decides when training ends: values that do not improve, a number of steps, or a time."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

from torch.optim import Optimizer
from torchbus.plugin import Answer, Context, UsageError, expect, hookimpl

from torchbus_strategy.decisions import Decisions, clock_seconds

MODES = ("min", "max")


class StopJudge:
    """Judges whether a series of values still improves.

    ``best``, ``waited`` and ``last`` are its state.
    """

    def __init__(
        self,
        patience: int,
        mode: str,
        min_delta: float,
        stopping_threshold: float | None,
        divergence_threshold: float | None,
    ) -> None:
        """Check the arguments, which are those of ``EarlyStop``. Raises UsageError."""
        expect("patience", patience, int, "a number of values")
        expect("min_delta", min_delta, (int, float), "a number")
        optional = (int, float, type(None))
        expect("stopping_threshold", stopping_threshold, optional, "a number, or None")
        expect("divergence_threshold", divergence_threshold, optional, "a number, or None")
        if patience < 1:
            raise UsageError(
                f"patience={patience}: at least one value must be worse before the loop ends"
            )
        if not min_delta >= 0:
            raise UsageError(f"min_delta={min_delta}: it must be 0 or more")
        if mode not in MODES:
            raise UsageError(f"early_stop_mode={mode!r} is unknown: use 'min' or 'max'")
        self._patience = patience
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_delta = min_delta
        self._enough, self._too_bad = stopping_threshold, divergence_threshold
        self.restart()

    def restart(self) -> None:
        """Forget all values."""
        self.best, self.waited, self.last = math.inf, 0, math.nan

    def ends(self, value: float) -> bool:
        """Judge a value, and return whether the loop ends."""
        self.last = value
        if self._sign * value < self.best - self._min_delta:
            self.best, self.waited = self._sign * value, 0
        else:
            self.waited += 1
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the loop ends after the last value."""
        return (
            self.waited >= self._patience
            or self._is_better(self.last, self._enough)
            or (self._too_bad is not None and self._is_better(self._too_bad, self.last))
        )

    def _is_better(self, value: float, other: float | None) -> bool:
        return other is not None and self._sign * value < self._sign * other

    def __str__(self) -> str:
        found = [f"no better {self._patience} times in a row"]
        found += [] if self._enough is None else [f"better than {self._enough:g}"]
        found += [] if self._too_bad is None else [f"worse than {self._too_bad:g}"]
        best = f", best {self._sign * self.best:g}" if math.isfinite(self.best) else ""
        return ", or ".join(found) + best


class MaxSteps:
    """Calls ``stop`` after ``max_steps`` real steps of the loop, those of earlier runs included.

    Afterwards it skips all steps, of new optimizers too. Only optimizers that step in turn may
    finish the last step. ``has_left_out`` is True if the loop has called a step that was skipped.
    """

    def __init__(self, session: Context, max_steps: int, stop: Callable[[], None]) -> None:
        self._steps = session.steps.follow()
        self._max_steps = max_steps
        self._stop = stop
        self._made_later: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.has_left_out = False

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        if self._steps.count >= self._max_steps:
            self._made_later.add(optimizer)

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._steps.count >= self._max_steps:
            self._stop()

    @hookimpl
    def step_called(self, optimizer: Optimizer) -> Answer | None:
        if self._steps.count < self._max_steps:
            return None
        if optimizer in self._made_later:  # the loop trains its next model
            return Answer()
        if not self._steps.has_stepped(optimizer):
            return None
        self._stop()
        self.has_left_out = True
        return Answer()


class MaxTime:
    """Calls ``stop`` after a time by rank 0's clock, on all ranks after the same step."""

    def __init__(self, session: Context, seconds: float, stop: Callable[[], None]) -> None:
        ends_s = time.monotonic() + seconds
        self._stop = stop
        self._decisions = Decisions(session, "earlystop", lambda: time.monotonic() >= ends_s)

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._decisions.look():
            self._stop()


def seconds(max_time: str | float | timedelta) -> float:
    """Convert "02:00:00", "1:02:00:00" with days, a timedelta or a number to seconds.

    Raises UsageError for another type or value.
    """
    limit: float | None = None
    if isinstance(max_time, str):
        limit = clock_seconds("max_time", max_time)
    elif isinstance(max_time, timedelta):
        limit = max_time.total_seconds()
    elif isinstance(max_time, int | float) and not isinstance(max_time, bool):
        limit = float(max_time)
    if limit is None:
        raise UsageError(
            f"max_time={max_time!r}: it must be a string such as '02:00:00' or '1:12:00:00', a"
            " timedelta, or a number of seconds"
        )
    if not limit > 0:
        raise UsageError(f"max_time={max_time!r}: it must be more than 0 seconds")
    return limit
