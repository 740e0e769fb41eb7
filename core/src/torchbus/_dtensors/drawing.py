"""Random numbers for DTensors, as ``nn.init`` and dropout draw them.

Each rank draws the whole tensor, and keeps its part. So the numbers are those of one process. Torch
lets each rank draw only its part. If ranks draw the same numbers, all parts would be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus._dtensors.values import like

aten = torch.ops.aten
Operator = Callable[..., object]


def _fill(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, object]
) -> DTensor:
    tensor: DTensor = arguments[0]
    drawn = like(operator(_room_for(tensor), *arguments[1:], **keywords), tensor)
    tensor.to_local().copy_(drawn.to_local())
    return tensor


def _made_like(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, object]
) -> Tensor:
    tensor: DTensor = arguments[0]
    made: Tensor = like(operator(_room_for(tensor), *arguments[1:], **keywords), tensor)
    return made


def _room_for(tensor: DTensor) -> Tensor:
    """A whole tensor, without values."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)


DRAWS: dict[object, Callable[..., object]] = {
    aten.normal_.default: _fill,
    aten.uniform_.default: _fill,
    aten.bernoulli_.float: _fill,
    aten.randn_like.default: _made_like,
    aten.rand_like.default: _made_like,
}
"""What DTensor calls for these operators."""
