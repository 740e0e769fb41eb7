"""``weight.data = values`` and ``weight.data[0] = 1`` change a divided tensor: torch changes what nobody reads, without a word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map
from torchbus.plugin import Unsupported

from torchbus_sharded.dtensor.reading import whole
from torchbus_sharded.optimizers.swap import like

SET_ITEM = Tensor.__setitem__


def set_data(tensor: DTensor, values: Tensor) -> None:
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        raise Unsupported(
            f"weight.data = values under strategy='fsdp': values of shape {tuple(values.shape)} and {values.dtype} for a parameter of shape "
            f"{tuple(tensor.shape)} and {tensor.dtype}, which is divided. Do it before the optimizer is made, or use strategy='ddp'"
        )
    _put(tensor, values)


def set_item(tensor: Any, index: Any, values: Any) -> None:
    """All ranks gather the whole, write, and keep their parts."""
    if not may_be_written(tensor):
        return SET_ITEM(tensor, index, values)  # for a parameter an error, as without a session
    changed = whole(tensor)
    changed[tree_map(gathered, index)] = gathered(values)
    _put(tensor, changed)


def may_be_written(tensor: DTensor) -> bool:
    """Not where it has a graph, nor where it is a sum that is still to be made over ranks."""
    in_graph = torch.is_grad_enabled() and tensor.requires_grad
    return not in_graph and not any(one.is_partial() for one in tensor.placements)


def _put(tensor: DTensor, values: Tensor) -> None:
    alike = isinstance(values, DTensor) and values.placements == tensor.placements
    divided: Any = values if alike else like(gathered(values), tensor)
    tensor.to_local().detach().copy_(divided.to_local().detach())


def gathered(value: Any) -> Any:
    return whole(value) if isinstance(value, DTensor) else value
