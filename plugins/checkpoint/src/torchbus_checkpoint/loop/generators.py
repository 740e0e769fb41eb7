"""Random generators of torch, Python and NumPy: those of a loader, its samplers and its dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import an

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.plain import State, Stateful, decode, encode, is_stateful
from torchbus_strategy import script_generators
from torchbus_strategy.script_generators import Generator

PARTS = ("sampler", "batch_sampler", "dataset")
INNER = {"dataset": ("dataset",), "sampler": ("sampler",), "batch_sampler": PARTS[:2]}
"""What a part may wrap: a batch sampler a sampler, or another batch sampler."""


def read(loader: DataLoader[object]) -> State:
    """Return the state of each generator by its place, and of each sampler with a state_dict."""
    found = {path: state_of(thing) for path, thing in _generators(loader)}
    stateful = {
        path: encode(thing.state_dict(), f"the {path} of a loader")
        for path, thing in _stateful(loader)
    }
    return found | stateful


def write(loader: DataLoader[object], states: State, but: Sequence[Generator] = ()) -> None:
    """Set generators, except for some, and samplers to the states that ``read`` returned."""
    for path, thing in _generators(loader):
        if path in states and not any(thing is one for one in but):
            set_state(thing, states[path])
    for path, thing in _stateful(loader):
        if path in states:
            thing.load_state_dict(decode(states[path]))


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


def is_one(thing: object) -> bool:
    """Whether it is a generator of torch, Python or NumPy."""
    return isinstance(thing, script_generators.kinds())


def state_of(thing: Generator) -> object:
    """Return the state of a generator."""
    state = script_generators.state_of(thing)
    is_of_numpy = isinstance(thing, script_generators.kinds_of_numpy())
    return encode(state, "a NumPy generator") if is_of_numpy else state


def set_state(thing: Generator, state: Any) -> None:
    """Set it to what ``state_of`` returned. Raises CheckpointError if that is of another kind."""
    try:
        is_of_numpy = isinstance(thing, script_generators.kinds_of_numpy())
        script_generators.set_state(thing, decode(state) if is_of_numpy else state)
    except Exception as error:
        raise CheckpointError(
            f"{an(type(thing).__name__)} rejects its state in the checkpoint"
            f" ({type(error).__name__}: {error}): either it was another generator, or torchbus did"
            " not write the checkpoint"
        ) from error
