"""torchbus-gpu: what each rank's GPU and host do while the loop runs, and what slows it down."""

from __future__ import annotations

from torchbus_gpu.plugin import Gpu

__all__ = ["Gpu"]
__version__ = "0.1.0"
