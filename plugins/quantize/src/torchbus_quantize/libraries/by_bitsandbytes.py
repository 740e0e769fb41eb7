"""bitsandbytes: NF4 with quantised scales, and int8 with one scale per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bitsandbytes.functional as kernels
import torch
from torch import Tensor

BLOCK = 64


def why_not(name: str, weight: Tensor) -> str:
    return "bitsandbytes takes no float64" if weight.dtype == torch.float64 else ""


def quantise(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Any]:
    weight = weight.contiguous()
    if name == "int8":
        values, scales, _ = kernels.int8_vectorwise_quant(weight)
        return {"values": values, "scales": scales}, (weight.dtype, None)
    values, state = kernels.quantize_4bit(
        weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
    )
    tensors = {
        "values": values,
        "scales": state.absmax,
        "codes": state.code,
        "offset": state.offset,
        "scales_of_scales": state.state2.absmax,
        "codes_of_scales": state.state2.code,
    }
    return tensors, (weight.dtype, (tuple(weight.shape), state.state2.blocksize))


def dequantise(tensors: Mapping[str, Tensor], settings: Any) -> Tensor:
    dtype, nf4 = settings
    if nf4 is None:
        whole: Tensor = kernels.int8_vectorwise_dequant(tensors["values"], tensors["scales"])
        return whole.to(dtype)
    shape, block_of_scales = nf4
    scales = kernels.QuantState(
        absmax=tensors["scales_of_scales"],
        code=tensors["codes_of_scales"],
        blocksize=block_of_scales,
        dtype=tensors["scales_of_scales"].dtype,
    )
    state = kernels.QuantState(
        absmax=tensors["scales"],
        shape=shape,
        code=tensors["codes"],
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=dtype,
        offset=tensors["offset"],
        state2=scales,
    )
    made: Tensor = kernels.dequantize_4bit(tensors["values"], state)
    return made
