"""Nested batches: tensors in lists, tuples, named tuples and mappings of any class, which keep their classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same nesting with other tensors; what is no tensor stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return mapping_like(value, {key: map_tensors(value[key], change) for key in value})
    if isinstance(value, list | tuple):
        return sequence_like(value, [map_tensors(item, change) for item in value])
    return value


def leaves(value: Any) -> list[Any]:
    """Everything in a nesting that is no container, in order."""
    if isinstance(value, Mapping):
        return [leaf for key in value for leaf in leaves(value[key])]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list | tuple) else [value]


def sequence_like(container: Any, items: Iterable[Any]) -> Any:
    """A list or tuple of the container's class."""
    return container._make(items) if hasattr(container, "_make") else type(container)(items)


def mapping_like(container: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the container's class, with its attributes (a ``defaultdict``'s factory), that holds ``items`` under the same keys."""
    if not isinstance(container, MutableMapping):
        return type(container)(items)  # type: ignore[call-arg]
    other = copy.copy(container)
    for key, item in items.items():
        other[key] = item
    return other
