"""torchao: NF4 with quantised scales, and int8 with one scale per row."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import torch
from torch import Tensor
from torchao.quantization import Int8Tensor, NF4Tensor, PerRow, to_nf4

BLOCK = 64
SCALES = 256


def why_not(name: str, weight: Tensor) -> str:
    if name == "nf4" and weight.numel() % BLOCK:
        return f"torchao's nf4 needs a multiple of {BLOCK} numbers, and it has {weight.numel()}"
    if name == "int8" and weight.dtype == torch.float64:
        return "torchao's int8 takes no float64"
    return ""


def quantise(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Any]:
    if name == "nf4":
        blocks = weight.numel() // BLOCK
        made = to_nf4(weight.contiguous(), BLOCK, gcd(blocks, SCALES))
    else:
        made = Int8Tensor.from_hp(weight.contiguous(), PerRow())
    names, settings = made.__tensor_flatten__()
    return {name: getattr(made, name) for name in names}, (type(made), settings)


def dequantise(tensors: Mapping[str, Tensor], settings: Any) -> Tensor:
    kind, remaining = settings
    made = kind.__tensor_unflatten__(dict(tensors), remaining, None, None)
    values: Tensor = (
        made.get_original_weight() if isinstance(made, NF4Tensor) else made.dequantize()
    )
    return values
