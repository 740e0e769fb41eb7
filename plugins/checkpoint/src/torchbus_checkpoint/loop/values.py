"""Values of variables: encoding, comparison and restoring."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torchbus.plugin import UsageError

from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.state.plain import decode, encode, is_part

MAX_ITEMS, MAX_BYTES = 10_000, 4 << 20
GENERATOR = "torchbus generator"


def to_save(value: object) -> object:
    """Encode a value. Raises UsageError if it is too large, or can't be saved."""
    if generators.is_one(value):
        return {GENERATOR: generators.state_of(value)}
    if type(value) not in (bool, int, float, str) and _size(value, MAX_ITEMS) > MAX_ITEMS:
        raise UsageError("too large")
    return encode(value.detach() if _is_loss(value) else value, "")


def _is_loss(value: object) -> TypeGuard[Tensor]:
    """Whether it is a scalar with a graph. The loop may print it after its last batch."""
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_leaf


def _size(value: object, limit: int) -> int:
    """Count the items, roughly, and stop beyond the limit."""
    if isinstance(value, Tensor):
        return 1 if _is_small(value.detach() if _is_loss(value) else value) else limit + 1
    if not isinstance(value, list | tuple | set | dict):
        return 1
    if type(value) not in (list, tuple, set, dict):
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
    """Whether it can be saved with the variables: small, not sharded, and without a graph."""
    num_bytes = tensor.numel() * tensor.element_size()
    return not tensor.requires_grad and not is_part(tensor) and num_bytes <= MAX_BYTES


def same(one: Any, other: Any) -> bool:
    """Whether both are equal, in type, too. NaN equals NaN."""
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
    """Return the saved value, in the current object if possible: others may hold that object."""
    if isinstance(saved, dict) and set(saved) == {GENERATOR}:
        if current is not None:
            generators.set_state(current, saved[GENERATOR])
        return current
    value = decode(saved)
    if isinstance(current, Tensor) and isinstance(value, Tensor):
        return _tensor(current, value)
    if type(current) is type(value) and isinstance(value, list):
        current[:] = value
        return current
    if type(current) is type(value) and isinstance(value, dict | set):
        current.clear()
        current.update(value)
        return current
    return value


def _tensor(current: Tensor, saved: Tensor) -> Tensor:
    fits = current.shape == saved.shape and current.dtype == saved.dtype
    if fits and not current.requires_grad:
        return current.copy_(saved)
    return saved.to(current.device)
