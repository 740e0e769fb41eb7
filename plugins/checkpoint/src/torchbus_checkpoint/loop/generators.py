"""Saves and restores what iterating changes in loaders, samplers and datasets: mainly the random
generators of torch, Python and NumPy.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from torch import Tensor
from torch.utils.data import DataLoader
from torchbus.plugin import UsageError, an

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.plain import (
    AS_THEY_ARE,
    State,
    Stateful,
    decode,
    digest,
    encode,
    is_stateful,
)
from torchbus_strategy import script_generators
from torchbus_strategy.script_generators import Generator

PARTS = ("sampler", "batch_sampler", "dataset")
INNER = {"dataset": ("dataset",), "sampler": ("sampler",), "batch_sampler": PARTS[:2]}
"""The attributes in which a part holds what it wraps.

A batch sampler may wrap a sampler or another batch sampler.
"""
LOOKED_AT = 1000


class LoaderStates:
    """Reads and restores what iterating changes in loaders: random generators, samplers with a
    ``state_dict``, and fields of the script's other samplers, such as a list that each pass
    shuffles.

    A field that has not changed since ``know(loader)`` is neither saved nor restored, so that a
    script may give a sampler another batch size in the next run.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[DataLoader[object], dict[str, str]] = (
            weakref.WeakKeyDictionary()
        )

    def know(self, loader: DataLoader[object]) -> None:
        """Record the fields of a loader's samplers. Called once, before the first pass."""
        self._known[loader] = {path: _digest(value) for path, _, _, value in _fields(loader)}

    def read(self, loader: DataLoader[object]) -> State:
        """Return the states by the place of their object in the loader (``sampler.generator``)."""
        known = self._known.get(loader, {})
        found = {path: state_of(thing) for path, thing in _generators(loader)}
        for path, thing in _stateful(loader):
            found[path] = encode(thing.state_dict(), f"the {path} of a loader")
        for path, _, _, value in _fields(loader):
            if path in known and _digest(value) != known[path]:
                with suppress(UsageError):  # leave out a field that holds objects
                    found[path] = encode(value, path)
        return found

    def write(
        self, loader: DataLoader[object], states: State, but: Sequence[Generator] = ()
    ) -> None:
        """Restore the states that ``read`` returned, except those of the generators in ``but``."""
        for path, thing in _generators(loader):
            if path in states and not any(thing is one for one in but):
                set_state(thing, states[path])
        for path, thing in _stateful(loader):
            if path in states:
                thing.load_state_dict(decode(states[path]))
        for path, part, name, value in _fields(loader):
            saved = decode(states[path]) if path in states else None
            if type(saved) is type(value):
                setattr(part, name, saved)


def parts(loader: DataLoader[object]) -> Iterator[tuple[str, object]]:
    """Yield a loader, its samplers and its datasets, each with its place."""
    yield "loader", loader
    seen = {id(loader)}
    for name in PARTS:
        yield from _wrapped(getattr(loader, name, None), name, name, seen)


def _wrapped(part: object, name: str, path: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    if part is None or id(part) in seen:
        return
    seen.add(id(part))
    yield path, part
    for inner in INNER[name]:
        yield from _wrapped(getattr(part, inner, None), inner, f"{path}.{inner}", seen)


def of(loader: DataLoader[object]) -> list[Generator]:
    """Return the generators of a loader."""
    return [thing for _, thing in _generators(loader)]


def _generators(loader: DataLoader[object]) -> Iterator[tuple[str, Generator]]:
    for path, part in parts(loader):
        for name, thing in getattr(part, "__dict__", {}).items():
            if is_one(thing):
                yield f"{path}.{name}", thing


def _stateful(loader: DataLoader[object]) -> Iterator[tuple[str, Stateful]]:
    for path, part in parts(loader):
        if path != "loader" and is_stateful(part):
            yield path, part


def _fields(loader: DataLoader[object]) -> Iterator[tuple[str, object, str, object]]:
    """Yield the fields of the script's samplers: (place, sampler, name, value)."""
    for path, part in parts(loader):
        is_of_script = not type(part).__module__.startswith("torch.")
        if "sampler" in path and is_of_script and not is_stateful(part):
            for name, value in list(getattr(part, "__dict__", {}).items()):
                if isinstance(value, (*AS_THEY_ARE, list, tuple)) or _is_vector(value):
                    yield f"{path}.{name}", part, name, value


def _digest(value: object) -> str:
    """Return a digest that a shuffle of the value changes. Of a long sequence, a part is read."""
    return digest(_sample(value))


def _sample(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_sample(one) for one in some(value)]
    if _is_vector(value):
        return some(value).tolist()
    return value if isinstance(value, AS_THEY_ARE) else id(value)


def _is_vector(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor or NumPy array with one dimension."""
    return getattr(value, "ndim", 0) == 1


def some(value: Any) -> Any:
    """Return every n-th item of a sequence or tensor: about ``LOOKED_AT`` items of a long one."""
    return value[:: max(1, len(value) // LOOKED_AT)]


def is_one(thing: object) -> bool:
    """Whether a value is a random generator of torch, Python or NumPy."""
    return isinstance(thing, script_generators.kinds())


def state_of(thing: Generator) -> object:
    """Return the state of a generator."""
    state = script_generators.state_of(thing)
    is_of_numpy = isinstance(thing, script_generators.kinds_of_numpy())
    return encode(state, "a NumPy generator") if is_of_numpy else state


def set_state(thing: Generator, state: Any) -> None:
    """Restore a state from ``state_of``. Raises CheckpointError if the generator rejects it."""
    try:
        is_of_numpy = isinstance(thing, script_generators.kinds_of_numpy())
        script_generators.set_state(thing, decode(state) if is_of_numpy else state)
    except Exception as error:
        raise CheckpointError(
            f"{an(type(thing).__name__)} rejects its state in the checkpoint"
            f" ({type(error).__name__}: {error}): either it was another generator, or torchbus did"
            " not write the checkpoint"
        ) from error
