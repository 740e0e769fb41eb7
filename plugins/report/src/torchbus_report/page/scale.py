"""Axes: map values to positions, with round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

LOG_FROM = 100.0
WANTED_TICKS = 5


@dataclass(frozen=True)
class Scale:
    """From values to places: ``low`` is at 0, and ``high`` at 1."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return _powers(self.low, self.high) if self.log else _round_numbers(self.low, self.high)


def fit(values: list[float], *, from_zero: bool = False, log: bool = False) -> Scale:
    """Return a scale for all values, with a little room.

    With ``log`` it is logarithmic if the values span two decades.
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log and low > 0 and high / low >= LOG_FROM:
        return Scale(low / 1.15, high * 1.15, log=True)
    if from_zero and low >= 0:
        return Scale(0.0, high * 1.05 or 1.0)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - room, high + room)


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
    """1e-05, 0.25, 1500, 12k, 3.5M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if factor <= abs(value) < 1e15:
            return f"{value / (1e3 if letter == 'k' else factor):g}{letter}"
    return f"{float(f'{value:.6g}'):g}"
