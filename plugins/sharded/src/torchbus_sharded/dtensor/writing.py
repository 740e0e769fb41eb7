"""Writing: ``weight.data = values`` and ``weight.data[0] = 1`` change a divided tensor.

Torch would silently write into a temporary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchbus.plugin import Unsupported

from torchbus_sharded._compat.tensors import tree_map
from torchbus_strategy import sharding

SET_ITEM = Tensor.__setitem__


def set_data(tensor: DTensor, values: Tensor) -> None:
    check_alike(tensor, values)
    _put(tensor, values)


def check_alike(tensor: Tensor, values: Tensor) -> None:
    """Raise Unsupported if the values have another shape or dtype."""
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        raise Unsupported(
            f"weight.data = values under strategy='fsdp': values of shape {tuple(values.shape)} and"
            f" {values.dtype} for a parameter of shape {tuple(tensor.shape)} and {tensor.dtype},"
            " which is divided. Do it before you make the optimizer, or use strategy='ddp'"
        )


def set_item(tensor: DTensor, index: Any, values: Any) -> None:
    """Gather the whole, write, and keep this rank's part. All ranks call it."""
    if not may_be_written(tensor):
        return SET_ITEM(tensor, index, values)  # for a parameter an error, as without a session
    changed = sharding.whole(tensor)
    changed[tree_map(sharding.whole, index)] = sharding.whole(values)
    _put(tensor, changed)


def may_be_written(tensor: DTensor) -> bool:
    """Whether it has no graph, and no sum over ranks is still to be made."""
    in_graph = torch.is_grad_enabled() and tensor.requires_grad
    return not in_graph and not any(one.is_partial() for one in tensor.placements)


def _put(tensor: DTensor, values: Tensor) -> None:
    alike = isinstance(values, DTensor) and values.placements == tensor.placements
    divided: Any = values if alike else sharding.like(sharding.whole(values), tensor)
    tensor.to_local().detach().copy_(divided.to_local().detach())
    torch.autograd.graph.increment_version(tensor)
