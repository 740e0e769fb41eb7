"""Converts values to what a checkpoint holds: tensors, and plain types that can't run code."""

from __future__ import annotations

import ast
import hashlib
import itertools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor
from torchbus.plugin import UsageError, an

from torchbus_checkpoint.state.jsonable import refuse_alike

State = dict[str, Any]
"""Plain values by name, as in a file of a checkpoint."""
Value = TypeVar("Value")
ARRAY, DTYPE, BYTES = "torchbus ndarray", "torchbus dtype", "torchbus bytes"
ON, TENSOR = "torchbus device", "torchbus tensor"
SET, DEQUE, MAXLEN = "torchbus set", "torchbus deque", "torchbus maxlen"
COUNT, NAMED, FIELDS = "torchbus count", "torchbus namedtuple", "torchbus fields"
AS_THEY_ARE = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)


class Stateful(Protocol):
    """An object with ``state_dict`` and ``load_state_dict``."""

    def state_dict(self) -> State:
        """Return the state."""

    def load_state_dict(self, state: State) -> object:
        """Load a state."""


def is_stateful(thing: object) -> TypeGuard[Stateful]:
    """Whether an object has ``state_dict`` and ``load_state_dict``."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def encode(value: Any, what: str) -> Any:
    """Convert a value to plain types and detached tensors, which are not copied.

    Raises UsageError, which names ``what``, for a value of another type.
    """
    kind = type(value)
    if kind in AS_THEY_ARE:
        return value
    if isinstance(value, Tensor):
        return value.detach()
    if kind is bytes:  # torch.load accepts only some bytes
        return {BYTES: value.decode("latin-1")}
    if kind in (list, tuple):
        return kind(encode(item, what) for item in value)
    if kind is set:  # torch 2.4 loads no set
        return {SET: [encode(item, what) for item in value]}
    if kind is deque:
        return {DEQUE: [encode(item, what) for item in value], MAXLEN: value.maxlen}
    if kind is itertools.count and (numbers := _numbers_of(value)):
        return {COUNT: numbers}
    if issubclass(kind, tuple) and _namedtuple(_path(kind)) is kind:
        return {NAMED: _path(kind), FIELDS: [encode(item, what) for item in value]}
    if kind is defaultdict:  # its factory can't be stored
        return {_encode_key(key, what): encode(item, what) for key, item in value.items()}
    if kind in (dict, OrderedDict, Counter):
        return kind({_encode_key(key, what): encode(item, what) for key, item in value.items()})
    return _encode_numpy(value, what)


def _numbers_of(counter: object) -> Any:
    """Return the next number and the step, which may be left out, or None if they aren't plain."""
    try:
        return ast.literal_eval(f"[{repr(counter)[len('count(') : -1]}]")
    except (ValueError, SyntaxError):
        return None


def _encode_key(key: Any, what: str) -> Any:
    """Convert a key of a dict, which can't be a tensor, nor have one."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, Tensor) for part in parts):
        raise UsageError(
            f"{what} holds a dict whose keys are tensors, which a checkpoint can't hold: give its"
            " state_dict() names or numbers as keys"
        )
    return encode(key, what)


def _encode_numpy(value: Any, what: str) -> object:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biuf":
        return _encode_array(value)
    raise UsageError(
        f"{what} holds {an(f'{type(value).__module__}.{type(value).__qualname__}')}, which a"
        " checkpoint can't hold: its state_dict() must be made of tensors, numbers, strings,"
        " arrays, and lists, tuples, sets and dicts of them"
    )


def _encode_array(array: Any) -> State:
    """Encode an array. Unsigned numbers become signed ones with the same bits, for torch 2.4."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    return {
        ARRAY: torch.from_numpy(array.copy().view(f"i{size}" if kind == "u" else array.dtype)),
        DTYPE: array.dtype.name,
    }


def decode(value: Any) -> Any:
    """Convert back what ``encode`` returned."""
    kind = type(value)
    if kind in (list, tuple, set):
        return kind(decode(item) for item in value)
    if kind is dict and set(value) == {ARRAY, DTYPE}:
        return _array(value[ARRAY], value[DTYPE])
    if kind is dict and set(value) == {ON, TENSOR}:
        return on_device(value[TENSOR], value[ON])
    if kind is dict and set(value) == {BYTES}:
        return value[BYTES].encode("latin-1")
    if kind is dict and set(value) == {SET}:
        return set(refuse_alike(decode(value[SET])))
    if kind is dict and set(value) == {DEQUE, MAXLEN}:
        return deque(decode(value[DEQUE]), value[MAXLEN])
    if kind is dict and set(value) == {COUNT}:
        return itertools.count(*value[COUNT])
    if kind is dict and set(value) == {NAMED, FIELDS}:
        named = _namedtuple(value[NAMED])
        items = [decode(item) for item in value[FIELDS]]
        return tuple(items) if named is None else tuple.__new__(named, items)
    if kind in (dict, OrderedDict, Counter):
        return kind({key: decode(item) for key, item in value.items()})
    return value


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _namedtuple(path: str) -> type[tuple[object, ...]] | None:
    """Return the class of an imported module, or None if there is no namedtuple of this name."""
    module, _, name = path.partition(":")
    # not getattr: a module's own __getattr__ may import what a forged checkpoint names
    found = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    is_one = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    return found if is_one else None


def with_device(value: Any) -> Any:
    """Mark the tensors in an encoded value, so that ``decode`` moves them to their accelerator."""

    def marked(tensor: Tensor) -> object:
        kind = tensor.device.type
        return tensor if kind == "cpu" else {ON: kind, TENSOR: tensor}

    return mapped(value, marked)


def on_device(tensor: Tensor, kind: str) -> Tensor:
    """Move a tensor to this rank's accelerator if the accelerator is of this kind."""
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return tensor.to(here) if here is not None and here.type == kind else tensor


def _array(tensor: Tensor, dtype: str) -> object:
    array = tensor.numpy()
    made = array.view(dtype)
    if made.dtype.kind not in "biuf":
        raise ValueError(f"an array of {made.dtype}")
    return made


def copied(value: Value) -> Value:
    """Copy all tensors to main memory, so that the loop may change the originals.

    Equal views of the same memory become one tensor.
    """
    done: dict[tuple[object, ...], Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        whole = tensor.layout == torch.strided and not is_part(tensor)
        key = (
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if whole
            else (id(tensor),)
        )
        if key not in done:
            done[key] = tensor.detach().to("cpu", copy=True)
        return done[key]

    result: Value = mapped(value, copy)
    return result


def mapped(value: Any, change: Callable[[Tensor], object]) -> Any:
    """Replace each tensor by what ``change`` returns."""
    kind = type(value)
    if isinstance(value, Tensor):
        return change(value)
    if kind in (list, tuple, set):
        return kind(mapped(item, change) for item in value)
    if kind in (dict, OrderedDict, Counter):
        return kind({key: mapped(item, change) for key, item in value.items()})
    return value


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor. This avoids the class, which torch has moved once."""
    return hasattr(tensor, "full_tensor")


def gathered(value: Any, keep: bool) -> Any:
    """Replace each sharded tensor with the whole tensor. All ranks must call this.

    Ranks that don't ``keep`` get None in place of each tensor, so that their memory holds only one
    whole tensor at a time.
    """

    def whole(tensor: Any) -> Tensor | None:
        found: Tensor = tensor.full_tensor() if is_part(tensor) else tensor
        return found if keep else None

    return mapped(value, whole)


def digest(value: object) -> str:
    return hashlib.sha256(b"".join(_bytes(value))).hexdigest()[:16]


def _bytes(value: object) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from (repr(key).encode(), *_bytes(value[key]))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _bytes(item)
    else:
        yield repr(value).encode()
