"""Whether the terms of a loss are made of different samples, as by a loop over the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchbus_strategy import compat
from torchbus_strategy.graph import children_of, nodes_below
from torchbus_strategy.loss.samples import may_be_of_parameters, samples_in, sizes_of
from torchbus_strategy.loss.terms import Term

PICKS = (
    "SelectBackward0",
    "SliceBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "UnbindBackward0",
)
"""What takes some rows, or columns, out of a tensor."""
NODES_AT_MOST = 2_000


def are_apart(terms: Sequence[Term], rows: int) -> bool:
    """Whether the terms of different samples are made of different tensors, except for what each
    has picked out of one, and except for parameters. Each of ``rows`` samples has the same
    number of terms. Terms of tasks, or of the members of an ensemble, share their samples.
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
    """Whether it takes samples, and not time steps or columns of all of them. A mask may do that,
    too, as ``z[labels == 1]`` does.
    """
    if type(node).__name__ not in PICKS:
        return False
    sizes = sizes_of(node, (0,))
    if type(node).__name__ == "UnbindBackward0":
        return compat.signed(compat.dim(node)) == 0
    dims = samples_in(node.next_functions[0][0], sizes).dims
    return compat.signed(compat.dim(node)) % len(sizes) in dims[:1]


def _target(term: Term) -> int:
    """Where its targets are in memory; 0 if it has saved none."""
    target = getattr(term.node, compat.TARGET, None)
    return target.data_ptr() if isinstance(target, Tensor) else 0
