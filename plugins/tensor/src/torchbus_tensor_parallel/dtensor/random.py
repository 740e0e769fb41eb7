"""Random numbers for DTensors, as dropout and ``nn.init`` draw them.

Each rank draws the whole tensor from the stream of its tensor group, and keeps its part. So the
numbers are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

aten = torch.ops.aten
Operator = Callable[..., Any]


def like(value: Tensor, other: DTensor) -> DTensor:
    """Divide a whole tensor, the same on all ranks, as the other one of its shape is."""
    placements = other.placements
    return distribute_tensor(value, other.device_mesh, placements, src_data_rank=None)


def _fill(operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> DTensor:
    tensor: DTensor = arguments[0]
    drawn = like(operator(_whole(tensor), *arguments[1:], **keywords), tensor)
    tensor.to_local().copy_(drawn.to_local())
    return tensor


def _made_like(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> DTensor:
    return like(operator(_whole(arguments[0]), *arguments[1:], **keywords), arguments[0])


def _native_dropout(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """What accelerators run for dropout: the result, and which elements were kept."""
    tensor: DTensor = arguments[0]
    scale, kept = operator(torch.ones_like(_whole(tensor)), *arguments[1:], **keywords)
    result: Tensor = tensor * like(scale, tensor)
    return result, like(kept, tensor)


def _whole(tensor: DTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)


DRAWS: dict[Any, Callable[..., object]] = {
    aten.normal_.default: _fill,
    aten.uniform_.default: _fill,
    aten.bernoulli_.float: _fill,
    aten.randn_like.default: _made_like,
    aten.rand_like.default: _made_like,
    aten.native_dropout.default: _native_dropout,
}
