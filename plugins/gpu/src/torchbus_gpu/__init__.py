"""torchbus-gpu: monitors each rank's GPU and host, and finds what slows the loop down."""

from __future__ import annotations

from torchbus_gpu.plugin import Gpu

__all__ = ["Gpu"]
