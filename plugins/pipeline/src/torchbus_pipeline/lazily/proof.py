"""Whether a loss is a mean, or a sum, over samples: seen by its value and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torchbus_pipeline.lazily.replay import Replay

OF_A_PART = (RuntimeError, ValueError, IndexError, TypeError)
"""What a loss raises for some of the samples if something in it names their number."""


def bounds_of(rows: int, count: int) -> list[tuple[int, int]]:
    """The first row of each micro-batch, and the first after it."""
    sizes = [len(part) for part in torch.empty(rows).tensor_split(count)]
    ends = [sum(sizes[:number]) for number in range(count + 1)]
    return list(pairwise(ends))


def weights_of(kind: str, rows: int, count: int) -> list[float]:
    """How much the loss of each micro-batch counts."""
    return [
        (end - start) / rows if kind == "mean" else 1.0 for start, end in bounds_of(rows, count)
    ]


def kind_of(replay: Replay, output: Tensor, count: int) -> str | None:
    """ "mean" or "sum", or None if the loss is neither for this output. All ranks find the same."""
    rows = len(output)
    if count < 2:
        return None
    try:
        whole, of_whole = _slope(replay, output.detach(), 0, rows)
        parts = [
            _slope(replay, output.detach()[start:end], start, end)
            for start, end in bounds_of(rows, count)
        ]
    except OF_A_PART:
        return None
    for kind in ("mean", "sum"):
        weights = weights_of(kind, rows, count)
        total = sum(weight * loss for weight, (loss, _) in zip(weights, parts, strict=True))
        slopes = [weight * slope for weight, (_, slope) in zip(weights, parts, strict=True)]
        if agree(total, whole) and agree(torch.cat(slopes), of_whole):
            return kind
    return None


def agree(ours: Tensor | float, whole: Tensor) -> bool:
    """Whether two numbers, or all of two tensors, differ only by the rounding of sums."""
    limit = torch.finfo(whole.dtype).eps ** 0.6
    difference = (torch.as_tensor(ours) - whole).abs().max()
    return bool(difference <= limit * whole.abs().max() + 1e-30)


def _slope(replay: Replay, output: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """The loss of some rows, and its gradient by the output."""
    with torch.enable_grad():
        leaf = output.clone().requires_grad_()
        loss = replay.loss_of(leaf, start, end)
        if loss.dim():
            raise ValueError("backward was called on more than one number")
        (slope,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), slope


def total_of(losses: Sequence[Tensor], kind: str, rows: int) -> Tensor:
    """The loss of a batch, from those of its micro-batches."""
    weights = weights_of(kind, rows, len(losses))
    return torch.stack([weight * one for weight, one in zip(weights, losses, strict=True)]).sum()
