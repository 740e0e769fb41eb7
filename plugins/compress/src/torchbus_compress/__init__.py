"""torchbus-compress: gradient algorithms that send less than an all-reduce."""

from __future__ import annotations

from torchbus_compress.plugin import Compress

__all__ = ["Compress"]
