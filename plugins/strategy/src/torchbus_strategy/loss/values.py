"""Weighs the terms of a loss in its graph, and evaluates them from saved values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.graph import GradientEdge, Node
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from torchbus_strategy import compat
from torchbus_strategy.loss.reading import SHAPES, below
from torchbus_strategy.loss.terms import Number, Term
from torchbus_strategy.loss.walks import adds_parameters

Gradients = tuple[Tensor | None, ...]


def weigh(term: Term, weight: Number) -> list[RemovableHandle]:
    """Multiply the gradient of what a term's node makes, or of one number of it, by a weight."""
    node, ends = term.reduced_by, not isinstance(weight, Tensor) and not weight > 0.0
    if term.place is None:
        return [node.register_prehook(_each(lambda gradient: None if ends else gradient * weight))]
    place = slice(term.place, term.place + 1)
    before = node.register_prehook(
        _each(lambda one: _changed(one, place, 0.0 if ends else one[place] * weight))
    )
    return [before, node.register_hook(_without(place, node))] if ends else [before]


def _without(place: slice, node: Node) -> Callable[[Gradients, Gradients], Gradients]:
    """Leave one number out of a product's gradients: it may be NaN, and 0 * NaN is NaN.

    One gradient is that of the vector of losses. The other is that of their weights: also a vector,
    or one number, the sum over all losses, if they share one weight.
    """

    def leave_out(made: Tensor, given: Tensor) -> Tensor:
        if made.numel() == given.numel():
            return _changed(made, place, 0.0)
        return (given * _slope(node, given.numel())).nansum().reshape_as(made)

    def changed(made: Gradients, given: Gradients) -> Gradients:
        (gradient,) = given
        assert gradient is not None
        return _each(lambda one: leave_out(one, gradient))(made)

    return changed


def _slope(node: Node, size: int) -> Tensor:
    """Return the derivative of a product of ``size`` numbers with respect to their one weight."""
    mine: Tensor = compat.operand(node)
    other: Tensor = compat.other(node)
    if type(node).__name__ == "DivBackward0":
        return -mine / other**2
    return mine if mine.numel() == size else other


def _changed(gradient: Tensor, place: slice, values: Tensor | float) -> Tensor:
    changed = gradient.clone()
    changed[place] = values
    return changed


def _each(change: Callable[[Tensor], Tensor | None]) -> Callable[[Gradients], Gradients]:
    return lambda gradients: tuple([None if one is None else change(one) for one in gradients])


REDUCTIONS = ("none", "mean", "sum")
WITH_TARGETS: dict[str, Callable[[Node, str], Tensor]] = {
    "MseLossBackward0": lambda node, reduction: F.mse_loss(
        compat.operand(node), compat.target(node), reduction=reduction
    ),
    "SmoothL1LossBackward0": lambda node, reduction: F.smooth_l1_loss(
        compat.operand(node), compat.target(node), reduction=reduction, beta=compat.beta(node)
    ),
    "HuberLossBackward0": lambda node, reduction: F.huber_loss(
        compat.operand(node), compat.target(node), reduction=reduction, delta=compat.delta(node)
    ),
    "BinaryCrossEntropyBackward0": lambda node, reduction: F.binary_cross_entropy(
        compat.operand(node), compat.target(node), compat.weight(node), reduction=reduction
    ),
    "BinaryCrossEntropyWithLogitsBackward0": lambda node, reduction: (
        F.binary_cross_entropy_with_logits(
            compat.operand(node),
            compat.target(node),
            compat.weight(node),
            reduction=reduction,
            pos_weight=compat.pos_weight(node),
        )
    ),
    "NllLossBackward0": lambda node, reduction: _nll(node, reduction),
    "NllLoss2DBackward0": lambda node, reduction: _nll(node, reduction),
}
ELEMENTWISE: dict[str, Callable[[Node, Tensor], Tensor]] = {
    "AbsBackward0": lambda node, x: x.abs(),
    "GatherBackward0": lambda node, x: x.gather(
        compat.signed(compat.dim(node)), compat.index(node)
    ),
    "LogBackward0": lambda node, x: x.log(),
    "Log1PBackward0": lambda node, x: x.log1p(),
    "LogSigmoidBackward0": lambda node, x: F.logsigmoid(x),
    "PowBackward0": lambda node, x: x ** compat.exponent(node),
    "SoftplusBackward0": lambda node, x: F.softplus(x, compat.beta(node)),
}
"""Functions that compute a node's result again from the tensor that it has saved."""
DEPTH = 8


@torch.no_grad()
def weighed(loss: Tensor, terms: Sequence[Term], weights: Sequence[Number]) -> Number | None:
    """Return a loss, or a part of it, whose terms are multiplied by ``weights``.

    None if too few of their values can be computed again.
    """
    values = parts(loss, terms)
    if values is None:
        return None
    remaining = loss.detach() - sum(values.values())
    total = sum(_times(value, weights[place]) for place, value in values.items())
    if loss.device.type == "cpu":
        return float(total) + (float(remaining) if math.isfinite(remaining) else 0.0)
    return total + torch.where(torch.isfinite(remaining), remaining, 0.0)


def parts(loss: Tensor, terms: Sequence[Term]) -> dict[int, Tensor] | None:
    """Return what each term that is part of the loss adds to it, by the term's place.

    If only one term can't be computed again, it is the rest of the loss, unless that has a penalty.
    None if too few terms can be computed.
    """
    with torch.enable_grad():
        edges = [GradientEdge(term.reduced_by, 0) for term in terms]
        factors = grad(loss, edges, retain_graph=True, allow_unused=True)
    found = {place: factor for place, factor in enumerate(factors) if factor is not None}
    known = {place: _added(terms[place], factor) for place, factor in found.items()}
    unknown = sum(value is None for value in known.values())
    if unknown > 1 or (unknown and adds_parameters(loss, terms)):
        return None
    left = loss.detach() - sum(value for value in known.values() if value is not None)
    return {place: left if value is None else value for place, value in known.items()}


def _added(term: Term, factor: Tensor) -> Tensor | None:
    value = value_of(term)
    return None if value is None else (factor if term.place is None else factor[term.place]) * value


@torch.no_grad()
def value_of(term: Term) -> Tensor | None:
    """Return the sum or mean that a term stands for. None if the graph has not saved enough."""
    value = _value(term.reduced_by)
    return value if value is None or term.place is None else value[term.place]


def _value(node: Node) -> Tensor | None:
    name = type(node).__name__
    if name in WITH_TARGETS:
        return WITH_TARGETS[name](node, REDUCTIONS[compat.reduction(node)])
    if name in ("MulBackward0", "DivBackward0"):
        first, second = compat.saved(node, compat.SELF), compat.saved(node, compat.OTHER)
        if first is None or second is None:
            return None
        return torch.as_tensor(first * second if name == "MulBackward0" else first / second)
    if name not in ("MeanBackward0", "SumBackward0"):
        return None
    child = below(node)
    while type(child).__name__ in SHAPES:
        child = below(child)
    values = _elements(child, DEPTH)
    return None if values is None else values.mean() if name == "MeanBackward0" else values.sum()


def _elements(node: Node, depth: int) -> Tensor | None:
    """Return the tensor that a node has made, or None if the graph has not saved enough."""
    name = type(node).__name__
    result: Tensor | None = compat.saved(node, compat.RESULT)
    if result is not None:
        return result
    if name in ELEMENTWISE:
        given = compat.saved(node, compat.SELF)
        return None if given is None else ELEMENTWISE[name](node, given)
    if name in WITH_TARGETS:
        return WITH_TARGETS[name](node, REDUCTIONS[compat.reduction(node)])
    return _of_elements(node, name, depth) if depth else None


def _of_elements(node: Node, name: str, depth: int) -> Tensor | None:
    """Return what a node has made of other nodes' tensors."""
    if name == "MulBackward0":
        first = _side(node, compat.SELF, 0, depth)
        second = None if first is None else _side(node, compat.OTHER, 1, depth)
        return None if first is None or second is None else first * second
    if name not in ("NegBackward0", "SumBackward1", "MeanBackward1", "IndexBackward0"):
        return None
    values = _elements(below(node), depth - 1)
    if values is None or name == "NegBackward0":
        return None if values is None else -values
    if name == "IndexBackward0":
        return values[
            tuple(slice(None) if index is None else index for index in compat.indices(node))
        ]
    reduce = torch.sum if name == "SumBackward1" else torch.mean
    dims = [compat.signed(dim) for dim in compat.dim(node)]
    return reduce(values, dims, keepdim=compat.keepdim(node))


def _side(node: Node, name: str, place: int, depth: int) -> Tensor | None:
    """Return a factor. Autograd saves it only if the other factor needs a gradient."""
    held: Tensor | None = compat.saved(node, name)
    child = node.next_functions[place][0]
    return _elements(child, depth - 1) if held is None and child is not None else held


def _nll(node: Node, reduction: str) -> Tensor:
    return F.nll_loss(
        compat.operand(node),
        compat.target(node),
        compat.weight(node),
        ignore_index=compat.signed(compat.ignore_index(node)),
        reduction=reduction,
    )


def _times(value: Tensor, weight: Number) -> Number:
    if isinstance(weight, Tensor):
        return torch.where(weight == 0.0, 0.0, value * weight)
    return value * weight if weight else 0.0
