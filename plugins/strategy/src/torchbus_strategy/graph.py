"""Walks through autograd's graphs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from torchbus_strategy import compat


def children_of(node: Any) -> Iterable[Any]:
    """Return the nodes to which a node sends gradients; None where it sends none."""
    return [child for child, _ in node.next_functions]


def nodes_below(
    roots: Iterable[Any],
    at_most: float = float("inf"),
    children: Callable[[Any], Iterable[Any]] = children_of,
) -> Iterator[Any]:
    """Yield these nodes and all below them, once each, level by level. A root may be None.

    It ends once ``at_most`` nodes were found. ``children`` returns the nodes to go to from a node.
    """
    waiting = deque(dict.fromkeys(root for root in roots if root is not None))
    seen = set(waiting)
    while waiting and len(seen) < at_most:
        node = waiting.popleft()
        yield node
        for child in children(node):
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


def sizes_of(node: Any, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the shape of what a node was given."""
    if hasattr(node, compat.SIZES):
        return tuple(compat.sizes(node))
    values = compat.saved(node, compat.SELF)
    return tuple(default if values is None else values.shape)


_held: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Plain tensors that an optimizer steps. The graph of a loss does not know its session, so the
process has one such table."""


def hold(tensors: Iterable[Tensor]) -> None:
    """Count an optimizer's tensors, of any shape, as parameters.

    Do not pass those whose first dimension holds samples.
    """
    _held.update((id(one), one) for one in tensors if not isinstance(one, nn.Parameter))


def is_parameter(leaf: Tensor) -> bool:
    """Whether a leaf, of any shape, is an ``nn.Parameter`` or a tensor that an optimizer steps."""
    return isinstance(leaf, nn.Parameter) or _held.get(id(leaf)) is leaf
