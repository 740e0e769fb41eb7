"""Walks a loss's whole graph to find samples that are left out, or depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchbus_strategy import compat
from torchbus_strategy.graph import children_of, nodes_below, sizes_of
from torchbus_strategy.loss.of_parameters import may_be_of_parameters
from torchbus_strategy.loss.samples import samples_in
from torchbus_strategy.loss.terms import Term


def leaves_some(root: Any) -> bool:
    """Whether the graph below ``root`` selects by a mask or by indices, or ignores targets.

    What it leaves is not counted by samples, even if its number equals theirs.
    """
    return any(map(_selects, nodes_below([root], at_most=20_000)))


def _selects(node: Any) -> bool:
    name = type(node).__name__
    if name == "IndexBackward0":  # picks one of each sample, as in ``z[torch.arange(len(z)), y]``
        first = next(one for one in compat.indices(node) if one is not None)
        return not torch.equal(first, torch.arange(len(first), device=first.device))
    ignored = getattr(node, compat.IGNORED, None)
    if ignored is not None:
        ignores = (compat.target(node) == compat.signed(ignored)).any()
        return bool(ignores) or compat.weight(node) is not None
    return name in ("IndexSelectBackward0", "MaskedSelectBackward0")


def decomposes_samples(loss: Tensor) -> bool:
    """Whether a loss inverts or factorises a matrix whose rows or columns are samples.

    The loss of a Gaussian process does.
    """
    return any(map(_is_over_samples, nodes_below([loss.grad_fn], at_most=500)))


def _is_over_samples(node: Any) -> bool:
    matrix = compat.saved(node, compat.MATRICES.get(type(node).__name__, ""))
    child = node.next_functions[0][0] if isinstance(matrix, Tensor) else None
    if child is None or matrix is None:
        return False
    shape = matrix.shape
    return not {len(shape) - 2, len(shape) - 1}.isdisjoint(samples_in(child, shape).dims)


def adds_parameters(loss: Tensor, terms: Sequence[Term]) -> bool:
    """Whether something of parameters alone, such as weight decay, is added to the terms."""
    reduced = {term.node for term in terms}

    def children(node: Any) -> Iterable[Any]:
        return () if node in reduced else children_of(node)

    found = nodes_below([loss.grad_fn], children=children)
    is_known = bool(reduced) and None not in reduced
    return is_known and any(type(node).__name__ == "AccumulateGrad" for node in found)


def is_made_zero(loss: Tensor, is_trained: Callable[[Tensor], bool]) -> bool:
    """Whether a loss is zero by a factor of zero, or because it is a leaf that is not trained.

    A trained leaf that is zero does not count, since it gets a gradient.
    """
    nodes = nodes_below([loss.grad_fn], children=_unless_times_zero)
    return not any(_has_gradient(node, is_trained) for node in nodes)


def _has_gradient(node: Any, is_trained: Callable[[Tensor], bool]) -> bool:
    leaf = getattr(node, "variable", None)
    return (leaf is not None and is_trained(leaf)) or any(
        one.dim() or (bool(one) and not compat.is_python_number(one)) for one in _factors(node)
    )


def _unless_times_zero(node: Any) -> Iterable[Any]:
    return [] if any(not one.dim() and not one for one in _factors(node)) else children_of(node)


def _factors(node: Any) -> list[Tensor]:
    sides = [compat.saved(node, side) for side in compat.FACTORS]
    return [one for one in sides if isinstance(one, Tensor) and not one.requires_grad]


PICKS = (
    "SelectBackward0",
    "SliceBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "UnbindBackward0",
)
"""Operations that pick some rows, or columns, of a tensor."""
NODES_AT_MOST = 2_000


def are_apart(terms: Sequence[Term], rows: int) -> bool:
    """Whether the terms of different samples are made of different tensors.

    They may share parameters, and a tensor of which each sample has picked its part. Each of
    ``rows`` samples has the same number of terms. Terms of several tasks, or of the members of an
    ensemble, are not apart, because they share their samples.
    """
    if any(term.node is None or term.place is not None for term in terms):
        return True
    groups: list[set[Any]] = []
    for mine in [_below(term.reduced_by) for term in terms]:
        joined = [one for one in groups if not one.isdisjoint(mine)]
        groups = [one for one in groups if one not in joined] + [mine.union(*joined)]
    targets = set(filter(None, map(_target, terms)))
    return not len(groups) % rows and not len(targets) % rows


def _below(root: Any) -> set[Any]:
    return {*nodes_below([root], NODES_AT_MOST, _of_samples)}


def _of_samples(node: Any) -> list[Any]:
    return [
        child
        for child in children_of(node)
        if child is not None and not _is_pick(child) and not may_be_of_parameters(child)
    ]


def _is_pick(node: Any) -> bool:
    """Whether a node picks samples, and not time steps or columns of all samples.

    A mask is not a pick: ``z[labels == 1]`` may be part of a term of the whole batch.
    """
    if type(node).__name__ not in PICKS:
        return False
    sizes = sizes_of(node, (0,))
    if type(node).__name__ == "UnbindBackward0":
        return compat.signed(compat.dim(node)) == 0
    dims = samples_in(node.next_functions[0][0], sizes).dims
    return compat.signed(compat.dim(node)) % len(sizes) in dims[:1]


def _target(term: Term) -> int:
    """Return the address of a term's targets in memory, 0 if its node has saved none."""
    target = getattr(term.node, compat.TARGET, None)
    return target.data_ptr() if isinstance(target, Tensor) else 0
