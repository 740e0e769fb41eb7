"""torchbus-ft: fault-tolerant replicas, which join and leave a running job."""

from __future__ import annotations

from torchbus_ft.strategy import FT

__all__ = ["FT"]
