"""After a step, each rank sends the parameters that it has stepped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def send(parameters: Sequence[Tensor], owners: Sequence[int], ranks: int) -> None:
    """Copy each parameter from the rank that owns it. All ranks call it.

    One broadcast per rank, dtype and device.
    """
    held = list(zip(parameters, owners, strict=True))
    for rank in range(ranks):
        for kind in dict.fromkeys((p.dtype, p.device) for p, owner in held if owner == rank):
            _broadcast(
                [p for p, owner in held if owner == rank and (p.dtype, p.device) == kind], rank
            )


def _broadcast(tensors: list[Tensor], source: int) -> None:
    packed = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    dist.broadcast(packed, source)
    if dist.get_rank() != source:
        for tensor, part in zip(
            tensors, packed.split([one.numel() for one in tensors]), strict=True
        ):
            tensor.data.copy_(part.view_as(tensor))
