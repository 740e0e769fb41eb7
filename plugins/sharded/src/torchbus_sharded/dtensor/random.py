"""Random numbers for divided tensors, as ``nn.init`` draws them.

Each rank draws the whole tensor, and keeps its part. Torch lets each rank draw only its part. If
ranks draw the same numbers, as before the first backward, all parts would be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_sharded._compat import dtensor
from torchbus_sharded.optimizers.swap import like

aten = torch.ops.aten
Operator = Callable[..., Tensor]
IN_PLACE = (aten.normal_.default, aten.uniform_.default, aten.bernoulli_.float)
LIKE = (aten.randn_like.default, aten.rand_like.default)


def draw_whole() -> Callable[[], None]:
    """Replace torch's functions. Returns a function that puts them back."""
    handlers = dtensor.handlers()
    handlers.update(dict.fromkeys(IN_PLACE, _fill) | dict.fromkeys(LIKE, _made_like))

    def undo() -> None:
        for operator in (*IN_PLACE, *LIKE):
            handlers.pop(operator, None)

    return undo


def _fill(operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> DTensor:
    tensor: DTensor = arguments[0]
    drawn: DTensor = like(operator(_whole(tensor), *arguments[1:], **keywords), tensor)
    tensor.to_local().copy_(drawn.to_local())
    return tensor


def _made_like(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    tensor: DTensor = arguments[0]
    made: Tensor = like(operator(_whole(tensor), **keywords), tensor)
    return made


def _whole(tensor: DTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)
