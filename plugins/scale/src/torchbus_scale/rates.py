"""The result of a learning-rate range test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torchbus.plugin import UsageError

SMOOTHING = 0.98
WIDTH = 6
"""A line is fitted through this fraction (1/6) of the losses on each side."""
DIVERGED = 4.0  # times the best loss, as in fastai


@dataclass(frozen=True)
class LearningRates:
    """The result of ``s.find_lr``, the same on all ranks.

    ``lrs`` are the learning rates of the first group, and ``losses`` the loss at each, the mean
    over ranks. ``suggestion`` is the rate where the loss falls most steeply over log(lr), or None
    if it falls nowhere. ``diverged`` is True if the test stopped early, because the smoothed loss
    exceeded four times its best, or was not finite.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    diverged: bool

    def __repr__(self) -> str:
        tried = f"{len(self.lrs)} rates from {min(self.lrs):.3g} to {max(self.lrs):.3g}"
        return f"<{tried}, suggestion={self.suggestion}, diverged={self.diverged}>"

    @property
    def smoothed(self) -> tuple[float, ...]:
        """Exponential moving averages of the losses, with bias correction."""
        return tuple(smooth(self.losses))

    @property
    def suggestion(self) -> float | None:
        """The rate where the loss falls most steeply, before its lowest point, or None.

        The slope over log(lr) is that of a line through the third of the losses around a rate. With
        fewer losses, the noise of single batches would decide.
        """
        half = max(1, len(self.losses) // WIDTH)
        around = [
            (index, self.losses[index - half : index + half + 1])
            for index in range(half, len(self.losses) - half)
        ]
        if not around:
            return None
        lowest, _ = min(around, key=lambda one: sum(one[1]))
        slope, steepest = min((_slope(values), i) for i, values in around if i <= lowest)
        return self.lrs[steepest] if slope < 0 else None

    def plot(self) -> Any:
        """Return a figure of matplotlib: the smoothed loss over the learning rate.

        Raises UsageError if matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise UsageError(
                "find_lr(...).plot() needs matplotlib: pip install matplotlib"
            ) from None
        figure = Figure()
        axes = figure.add_subplot(xscale="log", xlabel="learning rate", ylabel="loss, smoothed")
        axes.plot(self.lrs, self.smoothed)
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle="--", label=f"suggestion {self.suggestion:.2g}")
            axes.legend()
        return figure


def _slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line, up to a factor that depends on the length."""
    half = len(values) // 2
    return sum((number - half) * value for number, value in enumerate(values))


def smooth(losses: Sequence[float]) -> Iterator[float]:
    """Yield the exponential moving average at each loss, with bias correction."""
    means = accumulate(
        losses, lambda mean, loss: SMOOTHING * mean + (1 - SMOOTHING) * loss, initial=0.0
    )
    next(means)
    for number, mean in enumerate(means, 1):
        yield mean / (1 - SMOOTHING**number)


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the last smoothed loss is not finite, or exceeds four times the best one."""
    values = list(smooth(losses))
    return not math.isfinite(values[-1]) or values[-1] > DIVERGED * abs(min(values))


def spread(min_lr: float, max_lr: float, steps: int) -> list[float]:
    """Return rates from the smallest to the largest, each a constant multiple of the one before."""
    return [min_lr * (max_lr / min_lr) ** (number / (steps - 1)) for number in range(steps)]


def check(min_lr: object, max_lr: object, steps: object) -> None:
    """Raise UsageError unless the rates are positive and increasing, and steps are at least 10."""
    for name, value in (("min_lr", min_lr), ("max_lr", max_lr)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"find_lr({name}={value!r}): it must be a positive learning rate")
    if not float(str(min_lr)) < float(str(max_lr)) < math.inf:
        raise UsageError(
            f"find_lr(min_lr={min_lr!r}, max_lr={max_lr!r}): min_lr must be smaller than max_lr"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 10:
        raise UsageError(
            f"find_lr(steps={steps!r}): it must be a number of optimizer steps, at least 10"
        )
