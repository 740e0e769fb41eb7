"""The loop's own variables: ``best``, ``history``, ``running_loss``, ``self.num_steps``.

Saved are numbers, strings, small tensors, and lists, tuples, sets and dicts of them, in the frames of the user's code, in the modules
that these belong to, and in attributes of objects of the user's own classes; and of these only what has changed since the
first pass over a loader began, so that a constant which somebody edits between two runs stays as it is now. Random
generators are saved by their state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus.plugin import UsageError, collect, local_variables

from torchbus_checkpoint.loop import counters, generators
from torchbus_checkpoint.loop.frames import is_users_class
from torchbus_checkpoint.state.plain import copied, decode, encode, is_part

OF_TORCH = (Module, Optimizer, LRScheduler, DataLoader)  # what torch keeps in them has a state_dict
MAX_ITEMS, MAX_BYTES = 10_000, 4 << 20
GENERATOR = "torchbus generator"
State = dict[str, dict[str, Any]]


@dataclass
class Scope:
    """Somewhere where variables are; ``frame`` is None for modules and objects."""

    place: str
    values: dict[str, Any]
    frame: FrameType | None = None
    left_out: frozenset[str] = frozenset()
    hidden: str = "__"

    def bind(self, values: dict[str, Any]) -> None:
        if self.frame is None:
            self.values.update(values)
        else:
            local_variables.assign(self.frame, values)


class Variables:
    """Remembers how each variable was when it was seen first."""

    def __init__(self) -> None:
        self._first: State = {}

    def look(self, frames: list[FrameType]) -> None:
        """A pass over a loader begins, or an epoch."""
        for scope in scopes(frames):
            if scope.place not in self._first:
                self._first[scope.place] = copied(plain(scope))

    def changed(self, frames: list[FrameType], fetched: list[Tensor]) -> State:
        """What is not as it was first, by place; without what holds a batch that a wrapper has ``fetched``: it will be fetched again."""
        ahead = set(map(id, fetched))
        found = {
            scope.place: {name: value for name, value in self._changes(scope).items() if not (ahead and _holds(scope.values[name], ahead))}
            for scope in scopes(frames)
        }
        return {place: values for place, values in found.items() if values}

    def put_back(self, frames: list[FrameType], saved: State) -> None:
        """Give them the values that they had; what has changed in this run and had not in that one is as it was first."""
        for scope in scopes(frames):
            first = self._first.get(scope.place, {})
            again = {name: first[name] for name in self._changes(scope) if name in first}
            scope.bind({name: _put(scope.values.get(name), value) for name, value in (again | saved.get(scope.place, {})).items()})

    def _changes(self, scope: Scope) -> dict[str, Any]:
        first = self._first.get(scope.place, {})
        return {name: value for name, value in plain(scope).items() if name not in first or not same(value, first[name])}


def scopes(frames: list[FrameType]) -> Iterator[Scope]:
    """Frames, outermost first, their modules, and objects of the user's that they name."""
    seen: set[int] = set()
    for index, frame in enumerate(frames):
        is_module = not local_variables.is_function(frame) and frame.f_locals is frame.f_globals
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            left_out = counters.head_names(frame) if is_module else ()
            yield from _with_objects(Scope(f"module {frame.f_globals.get('__name__')}", frame.f_globals, None, frozenset(left_out)), seen)
        if not is_module:
            scope = Scope(counters.place(frames, index), local_variables.read(frame), frame, frozenset(counters.head_names(frame)))
            yield from _with_objects(scope, seen)


def _with_objects(scope: Scope, seen: set[int]) -> Iterator[Scope]:
    yield scope
    for name, value in list(scope.values.items()):
        if is_users_class(type(value)) and hasattr(value, "__dict__") and not isinstance(value, type) and id(value) not in seen:
            seen.add(id(value))
            yield Scope(f"{scope.place}.{name}", vars(value), hidden="_" if isinstance(value, OF_TORCH) else "__")


def plain(scope: Scope) -> dict[str, Any]:
    """The values that can be saved. A loop that asks for its next item is about to assign its variables: only numbers count."""
    found = {}
    for name, value in list(scope.values.items()):
        if not name.startswith(scope.hidden) and (name not in scope.left_out or type(value) is int):
            try:
                found[name] = _encode(value)
            except UsageError:
                continue
    return found


def _encode(value: Any) -> Any:
    if generators.is_one(value):
        return {GENERATOR: generators.state_of(value)}
    if type(value) not in (bool, int, float, str) and _size(value, MAX_ITEMS) > MAX_ITEMS:
        raise UsageError("too large")
    return encode(value, "")


def _size(value: Any, limit: int) -> int:
    """Number of items, roughly, no further than the limit; tensors that are large, in a graph or in parts count as too many."""
    if isinstance(value, Tensor):
        return limit + 1 if value.requires_grad or is_part(value) or value.numel() * value.element_size() > MAX_BYTES else 1
    if type(value) in (list, tuple, set, dict):
        if len(value) > limit:
            return limit + 1
        total = 1
        for item in value.values() if isinstance(value, dict) else value:
            total += _size(item, limit - total)
            if total > limit:
                return total
        return total
    return 1


def _holds(value: Any, tensors: set[int]) -> bool:
    found: list[Tensor] = []
    collect(value, found)
    return any(id(tensor) in tensors for tensor in found)


def generators_in(frames: list[FrameType]) -> Iterator[tuple[tuple[str, str], Any]]:
    """The state of each generator that a variable names, by place and name."""
    for scope in scopes(frames):
        for name, value in list(scope.values.items()):
            if generators.is_one(value):
                yield (scope.place, name), generators.state_of(value)


def put_generators(frames: list[FrameType], states: dict[tuple[str, str], Any]) -> None:
    """Set those that are there to what ``generators_in`` has found."""
    for scope in scopes(frames):
        for name, value in list(scope.values.items()):
            if (scope.place, name) in states and generators.is_one(value):
                generators.set_state(value, states[scope.place, name])


def same(one: Any, other: Any) -> bool:
    """Equal, in type too; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one.cpu(), other.cpu()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def _put(current: Any, saved: Any) -> Any:
    """The saved value; in the object that is there where it can be changed, since others may hold it as well."""
    if isinstance(saved, dict) and set(saved) == {GENERATOR}:
        generators.set_state(current, saved[GENERATOR]) if current is not None else None
        return current
    value = decode(saved)
    if isinstance(current, Tensor) and isinstance(value, Tensor):
        if current.shape == value.shape and current.dtype == value.dtype and not current.requires_grad:
            return current.copy_(value)
        return value.to(current.device)
    if type(current) is type(value) and isinstance(value, list):
        current[:] = value
        return current
    if type(current) is type(value) and isinstance(value, dict | set):
        current.clear()
        current.update(value)
        return current
    return value
