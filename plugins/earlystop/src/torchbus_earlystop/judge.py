"""Decides when training ends: values that do not improve, a number of steps, or a time."""

from __future__ import annotations

import functools
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

    ``best``, its step ``best_at``, ``waited`` and ``last`` are its state.
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
        self.best, self.best_at, self.waited, self.last = math.inf, 0, 0, math.nan

    @property
    def has_judged(self) -> bool:
        """Whether there was a value."""
        return self.waited > 0 or self.best < math.inf

    def ends(self, value: float, step: int) -> str:
        """Judge the value after a step, and return why the loop ends, or ""."""
        self.last = value
        if self._sign * value < self.best - self._min_delta:
            self.best, self.best_at, self.waited = self._sign * value, step, 0
        else:
            self.waited += 1
        return self.reason

    @property
    def reason(self) -> str:
        """Why the loop ends after the last value, or ""."""
        value = self.last
        if self.waited >= self._patience:
            return f"has not improved {self._patience} times in a row{self._of_best}"
        if self._is_better(value, self._enough):
            return f"is {value:g}, better than {self._enough:g}"
        if self._too_bad is not None and self._is_better(self._too_bad, value):
            return f"is {value:g}, worse than {self._too_bad:g}"
        return ""

    @property
    def _of_best(self) -> str:
        """The best value as a part of a sentence, or "" if there is none."""
        found = f", best {self._sign * self.best:g} at step {self.best_at}"
        return found if math.isfinite(self.best) else ""

    def _is_better(self, value: float, other: float | None) -> bool:
        return other is not None and self._sign * value < self._sign * other

    def __str__(self) -> str:
        found = [f"no better {self._patience} times in a row"]
        found += [] if self._enough is None else [f"better than {self._enough:g}"]
        found += [] if self._too_bad is None else [f"worse than {self._too_bad:g}"]
        return ", or ".join(found) + self._of_best


class MaxSteps:
    """Calls ``stop(why)`` after ``max_steps`` real steps, those of earlier runs included.

    Afterwards it skips all steps, of new optimizers too. Only optimizers that step in turn may
    finish the last step. ``has_left_out`` is True if the loop has called a step that was skipped.
    """

    def __init__(self, session: Context, max_steps: int, stop: Callable[[str], None]) -> None:
        self._steps = session.steps.follow()
        self._max_steps = max_steps
        self._stop = functools.partial(stop, f"max_steps={max_steps}")
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
    """Calls ``stop(why)`` after a time by rank 0's clock, on all ranks after the same step."""

    def __init__(self, session: Context, seconds: float, stop: Callable[[str], None]) -> None:
        ends_s = time.monotonic() + seconds
        self._stop = functools.partial(stop, f"max_time={seconds:g} s")
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
