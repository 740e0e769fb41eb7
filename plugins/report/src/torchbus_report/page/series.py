"""Curves: the points of one metric, thinned and smoothed; and axes with round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

LOG_FROM = 100.0
WANTED_TICKS = 5


@dataclass(frozen=True)
class AxisScale:
    """Maps values to positions on an axis: ``low`` to 0, and ``high`` to 1."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return _powers(self.low, self.high) if self.log else _round_numbers(self.low, self.high)


def fit(values: list[float], *, from_zero: bool = False, log: bool = False) -> AxisScale:
    """Return a scale for all values, with a small margin.

    With ``log``, the scale is logarithmic if the values are positive and span two decades.
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log and low > 0 and high / low >= LOG_FROM:
        return AxisScale(low / 1.15, high * 1.15, log=True)
    if from_zero and low >= 0:
        return AxisScale(0.0, high * 1.05 or 1.0)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return AxisScale(low - room, high + room)


def _round_numbers(low: float, high: float) -> list[float]:
    raw = (high - low) / WANTED_TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw * 0.8)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, math.ceil((last - first + 1) / (WANTED_TICKS + 1)))
    return [10.0**power for power in range(first, last + 1, every)]


def tick_text(value: float) -> str:
    """Return a short text of a number: 1e-05, 0.25, 1500, 12k, 3.5M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if factor <= abs(value) < 1e15:
            return f"{value / (1e3 if letter == 'k' else factor):g}{letter}"
    return f"{float(f'{value:.6g}'):g}"


MOST_POINTS = 400
SMOOTHED_FROM = 100
LARGEST = 1e300
SMOOTHED_OVER = 0.03


@dataclass(frozen=True)
class Curve:
    """A curve of one metric in one run.

    ``points`` are (x, y) in the order of x, where y is NaN if the value was not finite. ``lost`` is
    the number of such values. ``smoothed`` is empty for a curve that is smooth or ``faint``.
    ``color`` is an index of the palette.
    """

    label: str
    color: int
    points: list[tuple[float, float]]
    smoothed: list[tuple[float, float]]
    lost: int = 0
    faint: bool = False

    @property
    def x(self) -> list[float]:
        return [x for x, _ in self.points]

    @property
    def known(self) -> list[float]:
        return [y for _, y in self.points if not math.isnan(y)]


def series(label: str, color: int, points: list[tuple[float, float]], faint: bool = False) -> Curve:
    """Return a curve of at most ``MOST_POINTS`` points, which include all extremes.

    A value that is too large to draw counts as not finite.
    """
    finite = [
        (x, _drawable(y)) for x, y in sorted(points, key=lambda point: point[0]) if math.isfinite(x)
    ]
    lost = sum(math.isnan(y) for _, y in finite)
    return Curve(
        label,
        color,
        thin(finite),
        thin(smooth(finite)) if is_rough(finite) and not faint else [],
        lost,
        faint,
    )


def _drawable(value: float) -> float:
    return value if abs(value) <= LARGEST else math.nan


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the lowest and the highest point of each section, or a gap if it has no value."""
    if len(points) <= MOST_POINTS:
        return points
    stretches = MOST_POINTS // 2
    bounds = [len(points) * number // stretches for number in range(stretches + 1)]
    retained: list[tuple[float, float]] = []
    for start, end in pairwise(bounds):
        numbers = [index for index in range(start, end) if not math.isnan(points[index][1])]
        picked = (
            {min(numbers, key=lambda i: points[i][1]), max(numbers, key=lambda i: points[i][1])}
            if numbers
            else {start}
        )
        retained += [points[index] for index in sorted(picked)]
    return retained


def smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Replace each value by the mean of about 3 % of all values around it, fewer at the ends."""
    known = [(x, y) for x, y in points if not math.isnan(y)]
    sums = [0.0, *accumulate(y for _, y in known)]
    reach = round(SMOOTHED_OVER * len(known) / 2)

    def mean(at: int) -> float:
        first, end = max(0, at - reach), min(len(known), at + reach + 1)
        return (sums[end] - sums[first]) / (end - first)

    return [(x, mean(at)) for at, (x, _) in enumerate(known)]


def is_rough(points: list[tuple[float, float]]) -> bool:
    """Whether smoothing helps: there are many points, and the curve changes direction often."""
    known = [y for _, y in points if not math.isnan(y)]
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(known, known[1:], known[2:], strict=False))
    return len(known) >= SMOOTHED_FROM and turns > 0.3 * len(known)
