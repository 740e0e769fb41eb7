"""The values of a loss's terms, computed again from what the graph has saved: autograd keeps no results of sums and means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F

from torchbus._loss.graph import Number, Term

REDUCTIONS = ("none", "mean", "sum")
WITH_TARGETS: dict[str, Callable[[Any, Any], Tensor]] = {
    "MseLossBackward0": lambda node, reduction: F.mse_loss(node._saved_self, node._saved_target, reduction=reduction),
    "SmoothL1LossBackward0": lambda node, reduction: F.smooth_l1_loss(
        node._saved_self, node._saved_target, reduction=reduction, beta=node._saved_beta
    ),
    "HuberLossBackward0": lambda node, reduction: F.huber_loss(node._saved_self, node._saved_target, reduction=reduction, delta=node._saved_delta),
    "BinaryCrossEntropyBackward0": lambda node, reduction: F.binary_cross_entropy(
        node._saved_self, node._saved_target, node._saved_weight, reduction=reduction
    ),
    "BinaryCrossEntropyWithLogitsBackward0": lambda node, reduction: F.binary_cross_entropy_with_logits(
        node._saved_self, node._saved_target, node._saved_weight, reduction=reduction, pos_weight=node._saved_pos_weight
    ),
    "NllLossBackward0": lambda node, reduction: _nll(node, reduction),
    "NllLoss2DBackward0": lambda node, reduction: _nll(node, reduction),
}
DEPTH = 8


@torch.no_grad()
def weighed(loss: Tensor, terms: Sequence[Term], weights: Sequence[Number]) -> Number | None:
    """A loss whose terms were multiplied by ``weights``; None where too few of their values can be computed again."""
    values = parts(loss, terms)
    if values is None:
        return None
    rest = loss.detach() - sum(values)
    total = sum(_times(value, weight) for value, weight in zip(values, weights, strict=True))
    if loss.device.type == "cpu":
        return float(total) + (float(rest) if math.isfinite(rest) else 0.0)
    return total + torch.where(torch.isfinite(rest), rest, 0.0)


def parts(loss: Tensor, terms: Sequence[Term]) -> list[Tensor] | None:
    """What each term adds to the loss. Of one that can't be computed again it is what the others leave."""
    with torch.enable_grad():
        factors = grad(loss, [GradientEdge(term.node, 0) for term in terms], retain_graph=True)
    values = [value_of(term.node) for term in terms]
    known = [None if value is None else factor * value for factor, value in zip(factors, values, strict=True)]
    if sum(value is None for value in known) > 1:
        return None
    left = loss.detach() - sum(value for value in known if value is not None)
    return [left if value is None else value for value in known]


@torch.no_grad()
def value_of(node: Any) -> Tensor | None:
    """The sum or mean that a node stands for; None where what the graph has saved doesn't tell."""
    name = type(node).__name__
    if name in WITH_TARGETS:
        return WITH_TARGETS[name](node, REDUCTIONS[node._saved_reduction])
    if name not in ("MeanBackward0", "SumBackward0"):
        return None
    values = _elements(node.next_functions[0][0], DEPTH)
    return None if values is None else values.mean() if name == "MeanBackward0" else values.sum()


def _elements(node: Any, depth: int) -> Tensor | None:
    """The tensor that a node has made."""
    name = type(node).__name__
    if hasattr(node, "_saved_result"):
        return node._saved_result  # type: ignore[no-any-return]
    if name == "PowBackward0":
        return node._saved_self**node._saved_exponent  # type: ignore[no-any-return]
    if name == "AbsBackward0":
        return node._saved_self.abs()  # type: ignore[no-any-return]
    if name in WITH_TARGETS:
        return WITH_TARGETS[name](node, REDUCTIONS[node._saved_reduction])
    return _of_elements(node, name, depth) if depth else None


def _of_elements(node: Any, name: str, depth: int) -> Tensor | None:
    """What is made of other nodes' tensors."""
    if name == "MulBackward0":
        first = _side(node, "_saved_self", 0, depth)
        second = None if first is None else _side(node, "_saved_other", 1, depth)
        return None if first is None or second is None else first * second
    if name not in ("NegBackward0", "SumBackward1", "IndexBackward0"):
        return None
    below = _elements(node.next_functions[0][0], depth - 1)
    if below is None or name == "NegBackward0":
        return None if below is None else -below
    if name == "IndexBackward0":
        return below[tuple(slice(None) if index is None else index for index in node._saved_indices)]
    return below.sum([_signed(dim) for dim in node._saved_dim], keepdim=node._saved_keepdim)


def _side(node: Any, name: str, place: int, depth: int) -> Any:
    """A factor: autograd saves it where the other one needs it."""
    saved = getattr(node, name, None)
    return _elements(node.next_functions[place][0], depth - 1) if saved is None else saved


def _nll(node: Any, reduction: str) -> Tensor:
    return F.nll_loss(
        node._saved_self, node._saved_target, node._saved_weight, ignore_index=_signed(node._saved_ignore_index), reduction=reduction
    )


def _signed(number: int) -> int:
    """Nodes show negative numbers as if they had no sign."""
    return number - 2**64 if number >= 2**63 else number


def _times(value: Tensor, weight: Number) -> Number:
    if isinstance(weight, Tensor):
        return torch.where(weight == 0.0, 0.0, value * weight)
    return value * weight if weight else 0.0
