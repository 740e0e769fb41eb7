"""The values of variables that a checkpoint can hold: how they are saved, compared and restored."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torchbus.plugin import UsageError

from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.loop.frames import is_users_class
from torchbus_checkpoint.state.plain import decode, encode, is_part, with_device

MAX_ITEMS, MAX_BYTES = 10_000, 4 << 20
GENERATOR = "torchbus generator"
DICTS = (dict, OrderedDict, Counter, defaultdict)


def to_save(value: object) -> object:
    """Encode a value. Raises UsageError if it is too large, or can't be saved."""
    if generators.is_one(value):
        return {GENERATOR: generators.state_of(value)}
    if type(value) not in (bool, int, float, str) and _size(value, MAX_ITEMS) > MAX_ITEMS:
        raise UsageError("too large")
    return with_device(encode(value.detach() if _is_loss(value) else _as_builtin(value), ""))


def _as_builtin(value: object) -> object:
    """Return the content of a dict or list of a class of the user. It is restored in place."""
    if not is_users_class(type(value)):
        return value
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, list) else value


def is_data(value: object) -> bool:
    """Whether a value consists of types that a checkpoint can hold, whatever its size."""
    if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
        return False  # a parameter
    try:
        if not generators.is_one(value):
            encode(_as_builtin(value), "")
    except (UsageError, RecursionError):
        return False
    return True


def _is_loss(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a one-element tensor with a graph, which the loop may print later."""
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_leaf


def _size(value: Any, limit: int) -> int:
    """Count the items roughly. Stop counting beyond the limit."""
    if isinstance(value, Tensor):
        return 1 if _is_small(value.detach() if _is_loss(value) else value) else limit + 1
    if not isinstance(value, dict | list | set | deque | tuple):
        return 1
    if len(value) > limit:
        return limit + 1
    total = 1
    for item in value.values() if isinstance(value, dict) else value:
        total += _size(item, limit - total)
        if total > limit:
            break
    return total


def _is_small(tensor: Tensor) -> bool:
    """Whether a tensor can be saved with the variables: small, whole, and without a graph."""
    num_bytes = tensor.numel() * tensor.element_size()
    return not tensor.requires_grad and not is_part(tensor) and num_bytes <= MAX_BYTES


def same(one: Any, other: Any) -> bool:
    """Whether both values are equal and of the same type. NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and bool(torch.equal(one.cpu(), other.cpu()))
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def restored(current: Any, saved: object) -> object:
    """Return the saved value, in the current object if possible, which others may refer to."""
    if isinstance(saved, dict) and set(saved) == {GENERATOR}:
        if current is not None:
            generators.set_state(current, saved[GENERATOR])
        return current
    value = decode(saved)
    if isinstance(current, Tensor) and isinstance(value, Tensor):
        return _tensor(current, value)
    if isinstance(current, list) and isinstance(value, list):
        current[:] = value
        return current
    if type(current) is type(value) and isinstance(value, set):
        current.clear()
        current.update(value)
        return current
    if isinstance(current, deque) and isinstance(value, deque):
        current.clear()
        current.extend(value)
        return current
    if isinstance(current, dict) and isinstance(value, dict):
        again = {key: _with_default(current, key, item) for key, item in value.items()}
        current.clear()
        current.update(again)
        return current
    return value


def _with_default(current: dict[object, object], key: object, saved: object) -> object:
    """Return the saved value of a key, as a defaultdict if the loop has, or would make, one."""
    if not isinstance(saved, dict):
        return saved
    factory = current.default_factory if isinstance(current, defaultdict) else None
    here = current.get(key) if key in current or factory is None else factory()
    if not isinstance(here, defaultdict):
        return saved
    inner = {name: _with_default(here, name, item) for name, item in saved.items()}
    return defaultdict(here.default_factory, inner)


def _tensor(current: Tensor, saved: Tensor) -> Tensor:
    fits = current.shape == saved.shape and current.dtype == saved.dtype
    if fits and not current.requires_grad:
        return current.copy_(saved)
    return saved.to(current.device)
