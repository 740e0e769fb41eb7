"""torchbus-debug: runs a few batches, overfits on the same ones, and finds where NaN comes from."""

from __future__ import annotations

from torchbus_debug.anomaly import Anomaly
from torchbus_debug.limits import Limits
from torchbus_debug.nan import NonFinite, StopOnNan

__all__ = ["Anomaly", "Limits", "NonFinite", "StopOnNan"]
