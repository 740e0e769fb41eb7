"""torchbus-compress: sends less than an all-reduce: 16 and 8 bits, PowerSGD, local SGD."""

from __future__ import annotations

from torchbus_compress.plugin import Compress

__all__ = ["Compress"]
