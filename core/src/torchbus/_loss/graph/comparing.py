"""Where a loss compares samples with each other, so that it is no mean over them."""

from __future__ import annotations

import math

from torch import Tensor
from torch.autograd.graph import Node

from torchbus._compat import saved
from torchbus._loss.graph.of_parameters import may_be_of_parameters

PICKS = (
    "AmaxBackward0",
    "AminBackward0",
    "KthvalueBackward0",
    "LogsumexpBackward0",
    "MaxBackward0",
    "MaxBackward1",
    "MedianBackward0",
    "MedianBackward1",
    "MinBackward0",
    "MinBackward1",
    "SortBackward0",
    "StdBackward0",
    "TopkBackward0",
    "VarBackward0",
)
PARTS = ("SliceBackward0", "IndexBackward0")
PRODUCTS = ("MulBackward0", "DotBackward0")


def compares_samples(node: Node, rows: int) -> bool:
    """Whether it picks, sorts or spreads so many samples: their largest, their variance."""
    if type(node).__name__ in PARTS:
        node = node.next_functions[0][0] or node
    if type(node).__name__ not in PICKS or rows < 2:
        return False
    sizes = tuple(saved.sizes(node) if hasattr(node, saved.SIZES) else saved.own(node).shape)
    return any(sizes[one] == rows for one in _dims(node, len(sizes))) and not may_be_of_parameters(
        node
    )


def _dims(node: Node, count: int) -> list[int]:
    """The dimensions over which it goes: all if it names none."""
    given = getattr(node, saved.DIM, None)
    if given is None or given == ():
        return list(range(count))
    return [saved.signed(one) for one in (given if isinstance(given, tuple) else (given,))]


def has_normalised_weights(node: Node, rows: int) -> bool:
    """Whether samples are multiplied by numbers that add up to one, or are one on average.

    Those of 0 and 1 are a mask, and equal ones are none.
    """
    if type(node).__name__ not in PRODUCTS or rows < 2:
        return False
    sides = [getattr(node, name, None) for name in (*saved.FACTORS, saved.TENSOR)]
    given = [one for one in sides if isinstance(one, Tensor) and not one.requires_grad]
    weights = given[0].detach() if len(given) == 1 and given[0].is_cpu else None
    if weights is None or weights.shape != (rows,) or not weights.is_floating_point():
        return False
    total, unlike = float(weights.double().sum()), len(set(weights.tolist()) - {0.0, 1.0}) > 1
    return unlike and any(math.isclose(total, one, rel_tol=1e-5) for one in (1.0, rows))
