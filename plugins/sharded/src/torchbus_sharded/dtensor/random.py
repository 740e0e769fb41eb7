"""Random numbers for divided tensors, as ``nn.init`` draws them: each rank draws the whole, and keeps its part.

Torch lets each rank draw for its part; where ranks draw alike, before the first backward and in evaluation, all parts would be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_sharded.optimizers.swap import like

aten = torch.ops.aten
IN_PLACE = (aten.normal_.default, aten.uniform_.default, aten.bernoulli_.float)
LIKE = (aten.randn_like.default, aten.rand_like.default)


def draw_whole() -> Callable[[], None]:
    """Returns what puts torch's own back."""
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    handlers.update(dict.fromkeys(IN_PLACE, _fill) | dict.fromkeys(LIKE, _made_like))

    def undo() -> None:
        for operator in (*IN_PLACE, *LIKE):
            handlers.pop(operator, None)

    return undo


def _fill(operator: Any, arguments: tuple[Any, ...], keywords: Any) -> Any:
    tensor = arguments[0]
    drawn = like(operator(_whole(tensor), *arguments[1:], **keywords), tensor)
    tensor.to_local().copy_(drawn.to_local())
    return tensor


def _made_like(operator: Any, arguments: tuple[Any, ...], keywords: Any) -> Any:
    tensor = arguments[0]
    return like(operator(_whole(tensor), **keywords), tensor)


def _whole(tensor: DTensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)
