"""What a walk over the whole graph of a loss shows: samples that were left out, or related."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchbus_strategy import compat
from torchbus_strategy.graph import children_of, nodes_below
from torchbus_strategy.loss.samples import samples_in


def leaves_some(root: Any) -> bool:
    """Whether the graph below selects by a mask or by numbers, or ignores targets.

    What is left is not counted by samples, even where the numbers are equal.
    """
    return any(map(_selects, nodes_below([root], at_most=20_000)))


def _selects(node: Any) -> bool:
    name = type(node).__name__
    if name == "IndexBackward0":  # one of each sample, as in ``z[torch.arange(len(z)), y]``
        first = next(one for one in compat.indices(node) if one is not None)
        return not torch.equal(first, torch.arange(len(first), device=first.device))
    ignored = getattr(node, compat.IGNORED, None)
    if ignored is not None:
        ignores = (compat.target(node) == compat.signed(ignored)).any()
        return bool(ignores) or compat.weight(node) is not None
    return name in ("IndexSelectBackward0", "MaskedSelectBackward0")


def decomposes_samples(loss: Tensor) -> bool:
    """Whether it inverts or factorises a matrix whose rows or columns are samples.

    A Gaussian process does.
    """
    return any(map(_is_over_samples, nodes_below([loss.grad_fn], at_most=500)))


def _is_over_samples(node: Any) -> bool:
    matrix = compat.saved(node, compat.MATRICES.get(type(node).__name__, ""))
    child = node.next_functions[0][0] if isinstance(matrix, Tensor) else None
    if child is None or matrix is None:
        return False
    shape = matrix.shape
    return not {len(shape) - 2, len(shape) - 1}.isdisjoint(samples_in(child, shape).dims)


def is_made_zero(loss: Tensor) -> bool:
    """Whether a factor of zero makes it zero, or a leaf that stands for no loss.

    A parameter that is zero does not: it has a gradient.
    """
    return not any(map(_has_gradient, nodes_below([loss.grad_fn], children=_unless_times_zero)))


def _has_gradient(node: Any) -> bool:
    return isinstance(getattr(node, "variable", None), nn.Parameter) or any(
        one.dim() or (bool(one) and not compat.is_python_number(one)) for one in _factors(node)
    )


def _unless_times_zero(node: Any) -> Iterable[Any]:
    return [] if any(not one.dim() and not one for one in _factors(node)) else children_of(node)


def _factors(node: Any) -> list[Tensor]:
    sides = [compat.saved(node, side) for side in compat.FACTORS]
    return [one for one in sides if isinstance(one, Tensor) and not one.requires_grad]
