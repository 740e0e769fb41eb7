"""torchbus-gpu: monitor each rank's GPU and host, and find what slows the loop down."""

from __future__ import annotations

from torchbus_gpu.plugin import Gpu

__all__ = ["Gpu"]
