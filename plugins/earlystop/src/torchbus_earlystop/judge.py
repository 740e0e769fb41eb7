"""Decides when a loop ends, and which passes would train."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Answer, Context, UsageError, expect, hookimpl, users_frame

from torchbus_strategy.decisions import Decisions, clock_seconds
from torchbus_strategy.evaluating import (
    DecidingModels,
    TrainedLoaders,
    in_eval_mode,
    without_gradients,
)

MODES = ("min", "max")


class StopJudge:
    """Judges values, one after the other. ``best`` and ``waited`` are its state."""

    def __init__(
        self,
        patience: int,
        mode: str,
        min_delta: float,
        stopping_threshold: float | None,
        divergence_threshold: float | None,
    ) -> None:
        """The arguments of ``EarlyStop``. Raises UsageError for a wrong one."""
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
        self.best, self.waited = math.inf, 0

    def ends(self, value: float) -> bool:
        """Judge a value. Return whether the loop ends with it."""
        if self._sign * value < self.best - self._min_delta:
            self.best, self.waited = self._sign * value, 0
        else:
            self.waited += 1
        return (
            self.waited >= self._patience
            or self._is_better(value, self._enough)
            or (self._too_bad is not None and self._is_better(self._too_bad, value))
        )

    def _is_better(self, value: float, other: float | None) -> bool:
        return other is not None and self._sign * value < self._sign * other

    def __str__(self) -> str:
        found = [f"no better {self._patience} times in a row"]
        found += [] if self._enough is None else [f"better than {self._enough:g}"]
        found += [] if self._too_bad is None else [f"worse than {self._too_bad:g}"]
        best = f", best {self._sign * self.best:g}" if math.isfinite(self.best) else ""
        return ", or ".join(found) + best


class TrainingPasses:
    """Recognises the passes that train, among those that begin.

    ``trained`` are the loaders that have fed a backward. A loop may make one for each epoch: a new
    loader trains if its pass begins in a line in which one of these began.
    """

    def __init__(self) -> None:
        self.trained, self._models = TrainedLoaders(), DecidingModels()
        self._begun: weakref.WeakKeyDictionary[DataLoader[object], tuple[str, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._lines: set[tuple[str, int]] = set()
        self._evaluating: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    def join(self, session: Context) -> None:
        """Listen to the loop, from the beginning of the session."""
        session.bus.register(self.trained, "earlystop.trained")
        session.bus.register(self._models, "earlystop.models")
        session.bus.register(self, "earlystop.passes")

    def begins(self, loader: DataLoader[object]) -> bool:
        """A pass begins now. Return whether it trains, as far as is known."""
        trains = not without_gradients() and self._looks_like_training(loader)
        if loader in self.trained and not trains:
            self._evaluating.add(loader)
        else:
            self._evaluating.discard(loader)
        return trains

    def _looks_like_training(self, loader: DataLoader[object]) -> bool:
        frame, has_trained = users_frame()[0], loader in self.trained
        line, is_new = (frame.f_code.co_filename, frame.f_lineno), loader not in self._begun
        self._begun[loader] = line
        if has_trained and line in self._lines:
            return True
        may_train = has_trained or (is_new and line in self._lines)
        return may_train and not in_eval_mode(self._models.now())

    def trains(self, loader: DataLoader[object]) -> bool:
        """Whether the loader has fed a backward, and its latest pass does not evaluate."""
        return loader in self.trained and loader not in self._evaluating

    def ends(self, loader: DataLoader[object]) -> bool:
        """The loader's latest pass ends. Return whether it has trained."""
        has_trained = self.trains(loader)
        self._evaluating.discard(loader)  # the pass around it goes on with training
        return has_trained

    @hookimpl(trylast=True)
    def after_backward(self) -> None:
        for loader, line in self._begun.items():
            if line not in self._lines and loader in self.trained:
                self._lines.add(line)


class MaxSteps:
    """Calls ``stop`` after ``max_steps`` real steps of the loop, those of earlier runs included.

    Whatever the loop then does, no further step begins, and no optimizer that it makes steps.
    ``has_left_out``: it has called a further step.
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
    """Calls ``stop`` when the time by rank 0's clock is up, on all ranks after the same step."""

    def __init__(self, session: Context, seconds: float, stop: Callable[[], None]) -> None:
        ends_s = time.monotonic() + seconds
        self._stop = stop
        self._decisions = Decisions(session, "earlystop", lambda: time.monotonic() >= ends_s)

    @hookimpl
    def after_optimizer_step(self) -> None:
        if self._decisions.look():
            self._stop()


def seconds(max_time: str | float | timedelta) -> float:
    """Convert "02:00:00", "1:02:00:00" with days, a timedelta or seconds. Raises UsageError."""
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
