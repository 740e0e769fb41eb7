"""The buffers of divided models, which every rank has whole."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn import Module

from torchbus_sharded._compat.fsdp2 import buffers_in


def copy_from_rank0(models: Iterable[Module]) -> None:
    """Give the models' buffers rank 0's values, in one broadcast per dtype. All ranks call it."""
    held = [buffer for model in models for some in buffers_in(model) for buffer in some.values()]
    buffers = {
        id(buffer): buffer for buffer in held if buffer is not None and buffer.numel()
    }.values()
    for kind in dict.fromkeys((buffer.dtype, buffer.device) for buffer in buffers):
        same = [buffer for buffer in buffers if (buffer.dtype, buffer.device) == kind]
        packed = torch.cat([buffer.reshape(-1) for buffer in same])
        dist.broadcast(packed, 0)
        for buffer, part in zip(same, packed.split([one.numel() for one in same]), strict=True):
            buffer.data.copy_(part.view_as(buffer))
