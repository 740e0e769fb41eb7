"""A DTensor and the whole tensor that it stands for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor


def whole(value: object) -> Any:
    """The whole of a DTensor, gathered, without a graph. Anything else as it is.

    All ranks of its mesh call it.
    """
    if not isinstance(value, DTensor):
        return value
    own = value.detach()
    assert isinstance(own, DTensor)
    is_whole = all(isinstance(placement, Replicate) for placement in own.placements)
    return own.to_local() if is_whole else own.full_tensor()


@torch.no_grad()
def like(value: object, parameter: Tensor) -> Any:
    """Divide a value, or make it whole, as its parameter is, if they have the same shape.

    Dividing takes each rank's own values, which must be the same on all.
    """
    if not isinstance(parameter, DTensor):
        return whole(value)
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None)
