"""torchbus-quantize: keeps the frozen weights of a model in 4 or 8 bits."""

from __future__ import annotations

from torchbus_quantize.layers import dequantize
from torchbus_quantize.plugin import Quantize

__all__ = ["Quantize", "dequantize"]
