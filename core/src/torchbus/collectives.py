"""``s.reduce``, ``s.all_gather``, ``s.barrier``: on torch's own collectives, any nesting of tensors and numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torchbus.errors import UsageError

OPERATIONS = {"mean": dist.ReduceOp.SUM, "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def reduce(value: torch.Tensor | float, op: str, device: torch.device, world_size: int) -> torch.Tensor:
    """The mean, sum, maximum or minimum of a tensor or number over the ranks, float64 for numbers."""
    if op not in OPERATIONS:
        raise UsageError(f"op={op!r} is unknown: use one of {', '.join(OPERATIONS)}")
    tensor = torch.as_tensor(value, dtype=None if isinstance(value, torch.Tensor) else torch.float64).detach().to(device).clone()
    if world_size > 1:
        dist.all_reduce(tensor, OPERATIONS[op])
    return tensor / world_size if op == "mean" else tensor


def all_gather(value: torch.Tensor, device: torch.device, world_size: int) -> list[torch.Tensor]:
    """The tensor of every rank, in rank order; their sizes in dim 0 may differ."""
    rows = torch.atleast_1d(value.detach().to(device)).contiguous()
    shapes = all_gather_object((value.dim(), tuple(rows.shape)), world_size)
    if len({(dim, shape[1:]) for dim, shape in shapes}) != 1:
        raise UsageError(f"all_gather: the shapes {[shape for _, shape in shapes]} differ in more than dim 0")
    padded = rows.new_zeros((max(shape[0] for _, shape in shapes), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    if world_size > 1:
        dist.all_gather(gathered, padded)
    else:
        gathered = [padded]
    return [tensor[: shape[0]].reshape(shape if dim else ()) for tensor, (dim, shape) in zip(gathered, shapes, strict=True)]


def all_gather_object(value: Any, world_size: int) -> list[Any]:
    """A small picklable object of every rank, in rank order."""
    if world_size == 1:
        return [value]
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, value)
    return gathered
