"""Which optimizers' gradients a backward adds to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torchbus.plugin import BackwardCall, Unsupported
from torchbus.tree import as_list

from torchbus_accumulate.messages import ASSIGNED, SHARED
from torchbus_accumulate.windows.sums import WindowSum


def reached(call: BackwardCall, sums: Sequence[WindowSum]) -> list[WindowSum]:
    """Return the sums with a parameter in the graph, or all sums if there is none."""
    if len(sums) < 2:
        return list(sums)
    leaves = _leaves(as_list(call.tensors))
    found = [one for one in sums if not leaves.isdisjoint(map(id, one.parameters()))]
    return found or list(sums)


def check(one: WindowSum, sums: Sequence[WindowSum], is_shared: bool) -> None:
    """At a skipped step, raise Unsupported if its gradients can't be added up."""
    if is_shared and one.is_assigned:
        raise Unsupported(ASSIGNED.format(_name(one)))
    if len(sums) < 2:
        return
    own = set(map(id, one.parameters()))
    for other in sums:
        if other is not one and other.calls and not own.isdisjoint(map(id, other.parameters())):
            raise Unsupported(SHARED.format(_name(other), _name(one)))


def _name(one: WindowSum) -> str:
    return type(one.optimizer()).__name__


def _leaves(roots: Sequence[Any]) -> set[int]:
    """Return the ids of the tensors that autograd accumulates gradients for."""
    found: set[int] = set()
    waiting = [root.grad_fn if isinstance(root, Tensor) else root.node for root in roots]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        following = {child for child, _ in node.next_functions} - seen
        seen |= following
        waiting += following
    return found
