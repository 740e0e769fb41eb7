"""Dropout on DTensors as accelerators run it: which elements it keeps is drawn for the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_strategy import sharding


def native_dropout(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """The result, and which elements were kept."""
    tensor: DTensor = arguments[0]
    ones = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)
    scale, kept = operator(ones, *arguments[1:], **keywords)
    result: Tensor = tensor * sharding.like(scale, tensor)
    return result, sharding.like(kept, tensor)


DROPOUT: dict[object, Callable[..., object]] = {
    torch.ops.aten.native_dropout.default: native_dropout
}
