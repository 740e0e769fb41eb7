"""The constants near the root of a loss's graph.

These are factors, divisors, exponents, label smoothing and weights of classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import Node

from torchbus._compat import saved
from torchbus._loss.graph.samples import samples_in

NODES_AT_MOST = 64
FACTORS_AT_MOST = 1024
FOLLOWED = (
    "AddBackward0",
    "SubBackward0",
    "RsubBackward1",
    "NegBackward0",
    "MulBackward0",
    "MulBackward1",
    "DivBackward0",
    "DivBackward1",
    "PowBackward0",
    "SumBackward0",
    "MeanBackward0",
)
SUMS = ("SumBackward0", "NansumBackward0")
TIMES = ("MulBackward0", "DivBackward0", "NegBackward0")
OF_A_SUM = " of a sum"
"""In a kind: the constant divides a sum. The ranks weigh such a loss by it."""


def read(loss: Tensor) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the kinds of nodes that hold constants, from the root on, and the constants.

    Both are empty if the graph can't be read. No tensor on a GPU is read.
    """
    found: list[tuple[str, float]] = []
    waiting, seen = [loss.grad_fn], 0
    try:
        while waiting and seen < NODES_AT_MOST:
            node, seen = waiting.pop(0), seen + 1
            if node is None:
                continue
            found += [(_kind(node), value) for value in _constants(node)]
            if type(node).__name__ in FOLLOWED:
                waiting += [child for child, _ in node.next_functions]
    except RuntimeError:  # the graph was used already: backward itself reports it
        return (), ()
    return tuple(name for name, _ in found), tuple(value for _, value in found)


def _kind(node: Node) -> str:
    name = type(node).__name__
    return name + OF_A_SUM if name.startswith("Div") and _divides_a_sum(node) else name


def _divides_a_sum(node: Node) -> bool:
    for _ in range(NODES_AT_MOST):
        child = node.next_functions[0][0]
        if child is None or type(child).__name__ in SUMS:
            return child is not None
        if type(child).__name__ not in TIMES:
            return False
        node = child
    return False


def _constants(node: Node) -> list[float]:
    plain = [getattr(node, name, None) for name in saved.NUMBERS]
    numbers = [float(value) for value in plain if isinstance(value, int | float)]
    if type(node).__name__.startswith(("MulBackward", "DivBackward")):
        numbers += _factor(node)
    elif type(node).__name__ == "NllLossBackward0":
        weights = saved.weight(node)
        numbers += (
            []
            if weights is None or weights.device.type != "cpu"
            else weights.detach().double().cumsum(0).sum().reshape(1).tolist()
        )
    return numbers


def _factor(node: Node) -> list[float]:
    """Return the other side of a product or quotient, if autograd keeps it only as a number."""
    sides = [
        side for side in (getattr(node, name, None) for name in saved.FACTORS) if side is not None
    ]
    if len(sides) != 1:
        return []
    if isinstance(sides[0], int | float):
        return [float(sides[0])]
    side = sides[0]
    if type(side) is not Tensor or side.device.type != "cpu" or side.is_complex():
        return []
    if side.dim() == 0:
        return [float(side)]
    return [_weighted_sum(side)] if side.dim() == 1 and _multiplies_statistics(node, side) else []


def _multiplies_statistics(node: Node, side: Tensor) -> bool:
    """Whether the other side is no more one number for each sample, but a mean over them: so the
    balance loss of a mixture of experts multiplies means by shares.
    """
    if side.requires_grad or side.numel() > FACTORS_AT_MOST:
        return False
    child = next((one for one, _ in node.next_functions if one is not None), None)
    found = samples_in(child, side.shape)
    return found.related and not found.dims


def _weighted_sum(side: Tensor) -> float:
    values = side.double()
    return float(values @ torch.arange(1.0, len(values) + 1, dtype=values.dtype))
