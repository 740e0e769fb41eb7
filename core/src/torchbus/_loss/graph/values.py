"""Computes the values of a loss's terms again, from what the graph has saved.

Autograd keeps no results of sums and means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.graph import GradientEdge, Node
from torch.nn import functional as F

from torchbus._compat import saved
from torchbus._loss.graph.reading import below
from torchbus._loss.graph.term import Number, Term

REDUCTIONS = ("none", "mean", "sum")
WITH_TARGETS: dict[str, Callable[[Node, str], Tensor]] = {
    "MseLossBackward0": lambda node, reduction: F.mse_loss(
        saved.own(node), saved.target(node), reduction=reduction
    ),
    "SmoothL1LossBackward0": lambda node, reduction: F.smooth_l1_loss(
        saved.own(node), saved.target(node), reduction=reduction, beta=saved.beta(node)
    ),
    "HuberLossBackward0": lambda node, reduction: F.huber_loss(
        saved.own(node), saved.target(node), reduction=reduction, delta=saved.delta(node)
    ),
    "BinaryCrossEntropyBackward0": lambda node, reduction: F.binary_cross_entropy(
        saved.own(node), saved.target(node), saved.weight(node), reduction=reduction
    ),
    "BinaryCrossEntropyWithLogitsBackward0": lambda node, reduction: (
        F.binary_cross_entropy_with_logits(
            saved.own(node),
            saved.target(node),
            saved.weight(node),
            reduction=reduction,
            pos_weight=saved.pos_weight(node),
        )
    ),
    "NllLossBackward0": lambda node, reduction: _nll(node, reduction),
    "NllLoss2DBackward0": lambda node, reduction: _nll(node, reduction),
}
DEPTH = 8


@torch.no_grad()
def weighed(loss: Tensor, terms: Sequence[Term], weights: Sequence[Number]) -> Number | None:
    """Return a loss whose terms are multiplied by ``weights``.

    None if too few of their values can be computed again.
    """
    values = parts(loss, terms)
    if values is None:
        return None
    rest = loss.detach() - sum(values)
    total = sum(_times(value, weight) for value, weight in zip(values, weights, strict=True))
    if loss.device.type == "cpu":
        return float(total) + (float(rest) if math.isfinite(rest) else 0.0)
    return total + torch.where(torch.isfinite(rest), rest, 0.0)


def parts(loss: Tensor, terms: Sequence[Term]) -> list[Tensor] | None:
    """Return what each term adds to the loss.

    One term that can't be computed again is what the others leave.
    """
    with torch.enable_grad():
        edges = [GradientEdge(term.reduced_by, 0) for term in terms]
        factors = grad(loss, edges, retain_graph=True)
    values = [value_of(term) for term in terms]
    known = [
        None if value is None else (factor if term.place is None else factor[term.place]) * value
        for term, factor, value in zip(terms, factors, values, strict=True)
    ]
    if sum(value is None for value in known) > 1:
        return None
    left = loss.detach() - sum(value for value in known if value is not None)
    return [left if value is None else value for value in known]


@torch.no_grad()
def value_of(term: Term) -> Tensor | None:
    """Return the sum or mean that a term stands for. None if the graph has not saved enough."""
    value = _value(term.reduced_by)
    return value if value is None or term.place is None else value[term.place]


def _value(node: Node) -> Tensor | None:
    name = type(node).__name__
    if name in WITH_TARGETS:
        return WITH_TARGETS[name](node, REDUCTIONS[saved.reduction(node)])
    if name in ("MulBackward0", "DivBackward0"):
        first, second = getattr(node, saved.SELF, None), getattr(node, saved.OTHER, None)
        if first is None or second is None:
            return None
        return torch.as_tensor(first * second if name == "MulBackward0" else first / second)
    if name not in ("MeanBackward0", "SumBackward0"):
        return None
    values = _elements(below(node), DEPTH)
    return None if values is None else values.mean() if name == "MeanBackward0" else values.sum()


def _elements(node: Node, depth: int) -> Tensor | None:
    """Return the tensor that a node has made."""
    name = type(node).__name__
    if hasattr(node, saved.RESULT):
        result: Tensor = saved.result(node)
        return result
    if name == "PowBackward0":
        power: Tensor = saved.own(node) ** saved.exponent(node)
        return power
    if name == "AbsBackward0":
        return torch.abs(saved.own(node))
    if name in WITH_TARGETS:
        return WITH_TARGETS[name](node, REDUCTIONS[saved.reduction(node)])
    return _of_elements(node, name, depth) if depth else None


def _of_elements(node: Node, name: str, depth: int) -> Tensor | None:
    """Return what a node has made of other nodes' tensors."""
    if name == "MulBackward0":
        first = _side(node, saved.SELF, 0, depth)
        second = None if first is None else _side(node, saved.OTHER, 1, depth)
        return None if first is None or second is None else first * second
    if name not in ("NegBackward0", "SumBackward1", "IndexBackward0"):
        return None
    values = _elements(below(node), depth - 1)
    if values is None or name == "NegBackward0":
        return None if values is None else -values
    if name == "IndexBackward0":
        return values[
            tuple(slice(None) if index is None else index for index in saved.indices(node))
        ]
    return values.sum([saved.signed(dim) for dim in saved.dim(node)], keepdim=saved.keepdim(node))


def _side(node: Node, name: str, place: int, depth: int) -> Tensor | None:
    """Return a factor. Autograd saves it if the other factor needs it."""
    held: Tensor | None = getattr(node, name, None)
    child = node.next_functions[place][0]
    return _elements(child, depth - 1) if held is None and child is not None else held


def _nll(node: Node, reduction: str) -> Tensor:
    return F.nll_loss(
        saved.own(node),
        saved.target(node),
        saved.weight(node),
        ignore_index=saved.signed(saved.ignore_index(node)),
        reduction=reduction,
    )


def _times(value: Tensor, weight: Number) -> Number:
    if isinstance(weight, Tensor):
        return torch.where(weight == 0.0, 0.0, value * weight)
    return value * weight if weight else 0.0
