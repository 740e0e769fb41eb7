"""torchbus-average: averages of weights (EMA, SWA) and schedule-free evaluation."""

from __future__ import annotations

from torchbus_average.plugin import Average
from torchbus_average.schedule_free import ScheduleFree

__all__ = ["Average", "ScheduleFree"]
