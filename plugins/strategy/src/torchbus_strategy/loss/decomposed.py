"""Whether a loss inverts or factorises a matrix over samples, as a Gaussian process does."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchbus_strategy import compat
from torchbus_strategy.graph import nodes_below
from torchbus_strategy.loss.samples import samples_in

NODES_AT_MOST = 500


def decomposes_samples(loss: Tensor) -> bool:
    """Whether rows or columns of such a matrix are samples. Walks the graph."""
    return any(map(_is_over_samples, nodes_below([loss.grad_fn], NODES_AT_MOST)))


def _is_over_samples(node: Any) -> bool:
    matrix = getattr(node, compat.MATRICES.get(type(node).__name__, ""), None)
    child = node.next_functions[0][0] if isinstance(matrix, Tensor) else None
    if child is None or matrix is None:
        return False
    shape = matrix.shape
    return not {len(shape) - 2, len(shape) - 1}.isdisjoint(samples_in(child, shape).dims)
