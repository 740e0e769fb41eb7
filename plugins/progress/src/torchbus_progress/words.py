"""Formats numbers, durations and snapshots as text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


def duration(seconds: float) -> str:
    """0:07, 12:30, 1:02:03."""
    minutes, second = divmod(int(max(0.0, seconds) + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def speed(rate: float) -> str:
    """118 it/s, 2.5 it/s, 3.2 s/it."""
    if rate < 1:
        return f"{1 / rate:.3g} s/it" if rate > 0 else "0 it/s"
    return f"{rate:.0f} it/s" if rate >= 10 else f"{rate:.1f} it/s"


def number(value: float) -> str:
    """Four significant digits, with trailing zeros: 0.3120, 12.50."""
    if not math.isfinite(value) or value == 0 or not 1e-4 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def count(snapshot: ProgressState) -> str:
    """412, or  412/1563: as wide at the beginning of a pass as at its end."""
    return (
        f"{snapshot.done}"
        if snapshot.total is None
        else f"{snapshot.done:>{len(str(snapshot.total))}}/{snapshot.total}"
    )


def facts(snapshot: ProgressState) -> list[str]:
    """Speed and time left, as far as they are known."""
    found = [speed(snapshot.rate)] if snapshot.rate is not None else []
    return found + ([f"{duration(snapshot.left_s)} left"] if snapshot.left_s is not None else [])


def metrics(snapshot: ProgressState) -> list[str]:
    return [f"{name} {number(value)}" for name, value in snapshot.metrics.items()]


def sentence(snapshot: ProgressState) -> str:
    """One line for a file."""
    part = [f"{100 * snapshot.part:.0f} %"] if snapshot.part is not None else []
    return (
        f"{snapshot.label}:"
        f" {', '.join([count(snapshot).strip(), *part, *facts(snapshot), *metrics(snapshot)])}"
    )


def summary(snapshot: ProgressState) -> str:
    """The line about a pass that has ended."""
    mean = (
        [speed(snapshot.done / snapshot.elapsed_s)]
        if snapshot.elapsed_s > 0 and snapshot.done
        else []
    )
    done = f"{snapshot.done} {snapshot.unit}"
    return (
        f"{snapshot.label}: {', '.join([done, *mean, *metrics(snapshot)])}, in"
        f" {duration(snapshot.elapsed_s)}"
    )


@dataclass(frozen=True)
class ProgressState:
    """``done`` of ``total`` batches, or another ``unit``, after ``elapsed_s``.

    ``rate`` is per second. ``total`` and ``rate`` are None if they are not known.
    """

    label: str
    done: int
    total: int | None = None
    elapsed_s: float = 0.0
    rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    unit: str = "batches"

    @property
    def left_s(self) -> float | None:
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate

    @property
    def part(self) -> float | None:
        """From 0 to 1."""
        return None if not self.total else min(1.0, self.done / self.total)
