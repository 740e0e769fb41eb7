"""Yields the leaves of nested structures, and maps functions over leaves or tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge


def map_leaves(value: object, change: Callable[[object], object]) -> Any:
    """Return the same nesting with ``change`` applied to each leaf, in order.

    A container in which no leaf has changed is returned as the same object.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return _with_items(value, dict(value.items()), change, mapping_like)
    if isinstance(value, list | tuple):
        items = [map_leaves(item, change) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        make = getattr(value, "_make", type(value))  # a named tuple has one
        return value if same else make(items)
    if is_dataclass(value):
        names = [one.name for one in dataclasses.fields(cast(Any, value))]
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
        return _with_items(value, fields, change, _dataclass_like)
    return change(value)


def map_tensors(value: object, change: Callable[[Tensor], object]) -> Any:
    """Replace the tensors, of any shape and dtype, in a nesting; other objects stay the same."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def leaves(value: object) -> list[Any]:
    """Return everything in a nesting that is not a container, in order."""
    found: list[object] = []

    def keep(leaf: object) -> object:
        found.append(leaf)
        return leaf

    map_leaves(value, keep)
    return found


def is_dataclass(value: object) -> bool:
    """Whether the value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def mapping_like(container: Mapping[object, object], items: dict[object, object]) -> object:
    """Return a mapping of the container's class, with its attributes, that holds ``items``."""
    if not isinstance(container, MutableMapping):
        return type(container)(items)  # type: ignore[call-arg]
    other = copy.copy(container)
    for name, held in list(getattr(other, "__dict__", {}).items()):
        if isinstance(held, MutableMapping):  # where the container holds its items
            vars(other)[name] = copy.copy(held)
    for key, item in items.items():
        other[key] = item
    return other


def _dataclass_like(value: object, items: dict[str, object]) -> object:
    """Return a copy of a dataclass object, frozen or not, with other values of its fields."""
    other = copy.copy(value)
    for name, item in items.items():
        object.__setattr__(other, name, item)
    return other


def _with_items(
    value: object,
    items: dict[Any, object],
    change: Callable[[object], object],
    make: Callable[[Any, dict[Any, object]], object],
) -> object:
    changed = {key: map_leaves(item, change) for key, item in items.items()}
    same = all(changed[key] is item for key, item in items.items())
    return value if same else make(value, changed)


# a constant, because every step uses it: creating a union each time costs half a microsecond
ONE = (torch.Tensor, GradientEdge)


def as_list(given: Any) -> list[Any]:
    """Return a list of the tensors or edges in what torch accepts: one, several, a dict or None."""
    if given is None:
        return []
    if isinstance(given, ONE):
        return [given]
    return list(given.values() if isinstance(given, dict) else given)
