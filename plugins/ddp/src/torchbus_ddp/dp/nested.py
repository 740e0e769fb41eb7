"""What a model takes and returns: tensors and numbers in lists, tuples, mappings and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Leaf = Tensor | float
Change = Callable[[Leaf], Any]


def map_leaves(value: Any, change: Change) -> Any:
    """``value`` with every tensor and every ``float`` in it replaced by ``change(leaf)``, in the order in which they stand."""
    if isinstance(value, Tensor | float):
        return change(value)
    if isinstance(value, Mapping):
        made = copy.copy(value) if hasattr(value, "__setitem__") else dict(value)
        for key, item in value.items():
            made[key] = map_leaves(item, change)  # type: ignore[index]
        return made
    if isinstance(value, list | tuple):
        make: Any = getattr(type(value), "_make", type(value))
        return make([map_leaves(item, change) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_leaves(getattr(value, name), change) for name in names})
    return value


def leaves_in(value: Any) -> list[Leaf]:
    """The tensors and floats of ``value``, in order."""
    found: list[Leaf] = []
    map_leaves(value, lambda leaf: (found.append(leaf), leaf)[1])  # type: ignore[func-returns-value]
    return found
