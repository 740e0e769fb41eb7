"""torchbus-average: averages of weights (EMA, SWA) and schedule-free evaluation."""

from __future__ import annotations

from torchbus_average.plugin import Average, ScheduleFree

__all__ = ["Average", "ScheduleFree"]
