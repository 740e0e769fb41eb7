"""torchbus-ft: replicas that come and go while the run goes on."""

from __future__ import annotations

from torchbus_ft.strategy import FT

__all__ = ["FT"]
