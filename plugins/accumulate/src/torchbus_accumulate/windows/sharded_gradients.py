"""Sharded gradients, of which each rank keeps a part."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_part(tensor: object) -> bool:
    """Whether it is a DTensor. This does not import that class."""
    return hasattr(tensor, "full_tensor")


def whole(part: Any) -> Tensor:
    """Gather the whole gradient. All ranks call it."""
    gathered: Tensor = part.full_tensor()
    return gathered


def as_parameter(gradient: Tensor, parameter: Any) -> Tensor:
    """Shard a gradient as its parameter is sharded. A whole one must be the same on all ranks."""
    if not is_part(parameter) or is_part(gradient):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        gradient, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
