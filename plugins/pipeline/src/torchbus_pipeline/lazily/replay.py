"""Replays the loop's operations on an output for other values of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torchbus.tree import leaves, map_tensors

from torchbus_pipeline.lazily.later import Later, laters_in

OF_A_PART = (RuntimeError, ValueError, IndexError, TypeError)
"""What a loss raises for some of the samples if something in it names their number."""


def bounds_of(rows: int, count: int) -> list[tuple[int, int]]:
    """Return the start and end row of each micro-batch."""
    sizes = [len(part) for part in torch.empty(rows).tensor_split(count)]
    ends = [sum(sizes[:number]) for number in range(count + 1)]
    return list(pairwise(ends))


def weights_of(kind: str, rows: int, count: int) -> list[float]:
    """Return the weight of each micro-batch's loss."""
    return [
        (end - start) / rows if kind == "mean" else 1.0 for start, end in bounds_of(rows, count)
    ]


def kind_of(replay: Replay, output: Tensor, count: int) -> str | None:
    """Return "mean" or "sum"; None if the loss is neither for this output.

    The same on all ranks.
    """
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
    """Whether two numbers or tensors differ only by the rounding of sums."""
    limit = torch.finfo(whole.dtype).eps ** 0.6
    difference = (torch.as_tensor(ours) - whole).abs().max()
    return bool(difference <= limit * whole.abs().max() + 1e-30)


def _slope(replay: Replay, output: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return the loss of some rows, and its gradient with respect to the output."""
    with torch.enable_grad():
        leaf = output.clone().requires_grad_()
        loss = replay.loss_of(leaf, start, end)
        if loss.dim():
            raise ValueError("backward was called on more than one number")
        (slope,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), slope


def total_of(losses: Sequence[Tensor], kind: str, rows: int) -> Tensor:
    """Return the loss of a batch from those of its micro-batches."""
    weights = weights_of(kind, rows, len(losses))
    return torch.stack([weight * one for weight, one in zip(weights, losses, strict=True)]).sum()


class Replay:
    """The operations between a model's output and the loss.

    ``outside``: other tensors that they use and that require gradients, such as the weights of a
    head. In their place, the replay uses ``inner``, whose gradients add up. ``path``: what the loss
    is made of. ``values``: the numbers of these in the last replay, by id.
    """

    def __init__(self, loss: Later, rows: int) -> None:
        self._loss, self._rows = loss, rows
        self.path = path_of(loss)
        self.values: dict[int, Tensor] = {}
        self.outside = list({id(one): one for one in _outside(self.path)}.values())
        self.inner = [one.detach().requires_grad_() for one in self.outside]
        self._inner_of = {
            id(one): inner for one, inner in zip(self.outside, self.inner, strict=True)
        }

    def loss_of(self, output: Tensor, start: int, end: int) -> Tensor:
        """Return the loss of some rows: ``output`` has those from ``start`` to ``end``."""
        known: dict[int, Tensor] = {}
        self.values = known

        def value_of(later: Later) -> Tensor:
            node = later.node
            if node is None:
                known[id(later)] = output
            elif id(later) not in known:
                take = self._taker(node, value_of, start, end)
                args, kwargs = map_tensors((node.args, node.kwargs), take)
                with torch.set_grad_enabled(node.trains and torch.is_grad_enabled()):
                    known[id(later)] = node.function(*args, **kwargs)
            return known[id(later)]

        return value_of(self._loss)

    def _taker(
        self, node: Any, value_of: Callable[[Later], Tensor], start: int, end: int
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that replaces a tensor by its rows.

        A tensor with a row, or several, for each sample is cut like the output.
        """
        lengths = {len(one) for one in laters_in((node.args, node.kwargs)) if one.dim()}
        whole = (start, end) == (0, self._rows)

        def take(tensor: Tensor) -> Tensor:
            if isinstance(tensor, Later):
                return value_of(tensor)
            inner = self._inner_of.get(id(tensor), tensor)
            if whole or not tensor.dim() or len(tensor) not in lengths or len(tensor) % self._rows:
                return inner
            each = len(tensor) // self._rows
            return inner[each * start : each * end]

        return take


def path_of(loss: Later) -> list[Later]:
    """Return the lazy operands of the loss, with itself."""
    return list(_path(loss, {}).values())


def _path(later: Later, found: dict[int, Later]) -> dict[int, Later]:
    """Return a lazy tensor and all its lazy operands, by id."""
    if id(later) not in found:
        found[id(later)] = later
        for one in laters_in((later.node.args, later.node.kwargs)) if later.node else ():
            _path(one, found)
    return found


def _outside(path: list[Later]) -> list[Tensor]:
    nodes = [later.node for later in path if later.node is not None and later.node.trains]
    return [
        leaf
        for node in nodes
        for leaf in leaves((node.args, node.kwargs))
        if isinstance(leaf, Tensor) and not isinstance(leaf, Later) and leaf.requires_grad
    ]
