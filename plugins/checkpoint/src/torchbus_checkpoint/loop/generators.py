"""Random generators that a loader has for itself: torch's, Python's, NumPy's, in it, its samplers and its dataset."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.plain import decode, encode

PARTS = ("sampler", "batch_sampler", "dataset")


def read(loader: DataLoader[Any]) -> dict[str, Any]:
    """State of each generator, by where it is found. Samplers that have a ``state_dict`` are asked for it."""
    found = {path: state_of(thing) for path, thing in _generators(loader)}
    stateful = {path: encode(thing.state_dict(), f"the {path} of a loader") for path, thing in _stateful(loader)}
    return found | stateful


def write(loader: DataLoader[Any], states: dict[str, Any]) -> None:
    """Set them to what ``read`` returned."""
    for path, thing in _generators(loader):
        if path in states:
            set_state(thing, states[path])
    for path, thing in _stateful(loader):
        if path in states:
            thing.load_state_dict(decode(states[path]))


def parts(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    yield "loader", loader
    seen = {id(loader)}
    for name in PARTS:
        part: Any = getattr(loader, name, None)
        path = name
        while part is not None and id(part) not in seen:
            seen.add(id(part))
            yield path, part
            inner = "dataset" if name == "dataset" else "sampler"
            part, path = getattr(part, inner, None), f"{path}.{inner}"


def _generators(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    for path, part in parts(loader):
        for name, thing in getattr(part, "__dict__", {}).items():
            if is_one(thing):
                yield f"{path}.{name}", thing


def _stateful(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    for path, part in parts(loader):
        if path != "loader" and hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            yield path, part


def is_one(thing: Any) -> bool:
    """Whether it is a generator of torch's, Python's or NumPy's."""
    numpy = sys.modules.get("numpy")
    of_numpy = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(thing, (torch.Generator, random.Random, *of_numpy))


def state_of(thing: Any) -> Any:
    """The state of a generator of torch's, Python's or NumPy's."""
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if isinstance(thing, random.Random):
        return thing.getstate()
    state = thing.bit_generator.state if hasattr(thing, "bit_generator") else thing.get_state()
    return encode(state, "a NumPy generator")


def set_state(thing: Any, state: Any) -> None:
    """Set it to what ``state_of`` returned. Raises CheckpointError where it is of another kind."""
    try:
        _set_state(thing, state)
    except Exception as error:
        raise CheckpointError(
            f"a {type(thing).__name__} does not take the state that the checkpoint has of it ({type(error).__name__}: {error}): either it was "
            "another generator, or the checkpoint is not what torchbus wrote"
        ) from error


def _set_state(thing: Any, state: Any) -> None:
    if isinstance(thing, torch.Generator):
        thing.set_state(state)
    elif isinstance(thing, random.Random):
        thing.setstate(state)
    elif hasattr(thing, "bit_generator"):
        thing.bit_generator.state = decode(state)
    else:
        thing.set_state(decode(state))
