"""The constants near the root of a loss's graph: factors, divisors, exponents, label smoothing, weights of classes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

NODES_AT_MOST = 64
FOLLOWED = (
    "AddBackward0", "SubBackward0", "RsubBackward1", "NegBackward0", "MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1", "PowBackward0",
    "SumBackward0", "MeanBackward0",
)  # fmt: skip
NUMBERS = ("_saved_alpha", "_saved_exponent", "_saved_beta", "_saved_delta", "_saved_margin")
FACTORS = ("_saved_other", "_saved_self")


def read(loss: Tensor) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The kinds of nodes that hold constants, from the root, and the constants; nothing of a graph that can't be read. Reads no tensor
    on a GPU."""
    found: list[tuple[str, float]] = []
    waiting, seen = [loss.grad_fn], 0
    try:
        while waiting and seen < NODES_AT_MOST:
            node, seen = waiting.pop(0), seen + 1
            if node is None:
                continue
            found += [(type(node).__name__, value) for value in _constants(node)]
            if type(node).__name__ in FOLLOWED:
                waiting += [child for child, _ in node.next_functions]
    except RuntimeError:  # a graph that was used already: backward itself will say so
        return (), ()
    return tuple(name for name, _ in found), tuple(value for _, value in found)


def _constants(node: Any) -> list[float]:
    plain = [getattr(node, name, None) for name in NUMBERS]
    numbers = [float(value) for value in plain if isinstance(value, int | float)]
    if type(node).__name__.startswith(("MulBackward", "DivBackward")):
        numbers += _factor(node)
    elif type(node).__name__ == "NllLossBackward0":
        weights = node._saved_weight
        numbers += [] if weights is None or weights.device.type != "cpu" else weights.detach().double().cumsum(0).sum().reshape(1).tolist()
    return numbers


def _factor(node: Any) -> list[float]:
    """The other side of a product or quotient, where autograd has no use for it but as a number."""
    sides = [side for side in (getattr(node, name, None) for name in FACTORS) if side is not None]
    if len(sides) != 1:
        return []
    if isinstance(sides[0], int | float):
        return [float(sides[0])]
    is_number = type(sides[0]) is Tensor and sides[0].dim() == 0 and sides[0].device.type == "cpu" and not sides[0].is_complex()
    return [float(sides[0])] if is_number else []
