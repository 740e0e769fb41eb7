"""What dp divides and joins: the tensors and floats that a model takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor
from torchbus.tree import leaves, map_leaves

Leaf = Tensor | float
T = TypeVar("T")


def map_numbers(value: T, change: Callable[[Leaf], Leaf]) -> T:
    """The same nesting, with every tensor and every ``float`` replaced, in order."""
    changed: T = map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Leaf) else leaf)
    return changed


def numbers_in(value: object) -> list[Leaf]:
    """The tensors and floats of ``value``, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Leaf)]
