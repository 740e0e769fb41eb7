"""Tensors inside whatever a model takes and returns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
Change = Callable[[Tensor], Tensor]


def map_tensors(value: Any, change: Change) -> Any:
    """``value`` with every tensor in it replaced by ``change(tensor)``: in lists, tuples, mappings and dataclasses.

    What has no tensor that changes is the same object as before.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return _rebuilt(value, list(value), list(value.values()), change, _same_mapping)
    if isinstance(value, list | tuple):
        make: Any = getattr(type(value), "_make", type(value))
        return _rebuilt(value, [], list(value), change, lambda _, __, items: make(items))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return _rebuilt(value, names, [getattr(value, name) for name in names], change, _same_dataclass)
    return value


def floats_to(dtype: torch.dtype) -> Change:
    """Real floating tensors in this dtype; others as they are."""
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def halves_to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def _rebuilt(value: Any, keys: list[Any], items: list[Any], change: Change, make: Callable[[Any, list[Any], list[Any]], Any]) -> Any:
    changed = [map_tensors(item, change) for item in items]
    return value if all(new is old for new, old in zip(changed, items, strict=True)) else make(value, keys, changed)


def _same_mapping(value: Any, keys: list[Any], items: list[Any]) -> Any:
    made = copy.copy(value)
    for key, item in zip(keys, items, strict=True):
        made[key] = item
    return made


def _same_dataclass(value: Any, names: list[Any], items: list[Any]) -> Any:
    return dataclasses.replace(value, **dict(zip(names, items, strict=True)))
