"""Gradients of which each rank keeps a part."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_part(tensor: Any) -> bool:
    """Whether it is a DTensor, without importing what has them."""
    return hasattr(tensor, "full_tensor")


def whole(part: Any) -> Tensor:
    """All ranks call it: it gathers."""
    gathered: Tensor = part.full_tensor()
    return gathered


def as_parameter(gradient: Tensor, parameter: Any) -> Tensor:
    """Divided as the parameter is. A whole gradient is the same on all ranks, each of which keeps its part."""
    if not is_part(parameter) or is_part(gradient):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(gradient, parameter.device_mesh, parameter.placements, src_data_rank=None)
