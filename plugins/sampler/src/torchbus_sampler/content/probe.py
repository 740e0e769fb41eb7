"""Reads a few items of a data set without changing its state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils.data import Dataset

from torchbus_sampler.content.items import ItemLeaf, fields_of
from torchbus_strategy import random_streams

SEED = 2**31 - 1
OBJECTS_AT_MOST = 100
MEMBERS_AT_MOST = 32


class CanNotBeAsked(Exception):
    """The items of a data set can't be looked at. The message says why."""


def ask(dataset: Any, keeps_open: bool) -> dict[str, ItemLeaf]:
    """Return the fields of the first item, the last one and one in between.

    The keys are paths such as ``item 0[1]``. The items are drawn with the same random numbers on
    all ranks. Afterwards, the process's random states and the data set's counters and generators
    are restored. Unless ``keeps_open``, so are all its other attributes, because forked workers
    must not inherit an open file. Raises CanNotBeAsked.
    """
    try:
        length = len(dataset)
    except Exception as error:
        raise CanNotBeAsked("it has no length") from error
    if length == 0:
        return {}
    inside = objects_of(dataset)
    if any(_is_read_once(value) for one in inside for value in vars(one).values()):
        raise CanNotBeAsked("it holds an iterator, which it may read on")
    indices = sorted({0, random.Random(SEED).randrange(length), length - 1})
    before = random_streams.read()
    try:
        random_streams.seed(SEED)
        with as_before(inside, keeps_open):
            items = zip(indices, _items(dataset, indices), strict=True)
            return {
                path: field
                for index, item in items
                for path, field in fields_of(item, f"item {index}").items()
            }
    except Exception as error:
        raise CanNotBeAsked(f"item {indices[0]} raises {type(error).__name__}") from error
    finally:
        random_streams.write(before)


def _items(dataset: Any, indices: list[int]) -> list[object]:
    """Fetch items as torch's own fetcher does."""
    many = getattr(dataset, "__getitems__", None)
    return list(many(indices)) if many else [dataset[index] for index in indices]


@contextmanager
def as_before(objects: list[object], keeps_open: bool) -> Iterator[None]:
    """Restore what the block changes in the objects."""
    attributes = [(one, dict(vars(one))) for one in objects]
    states = [
        state
        for _, held in attributes
        for value in held.values()
        if (state := _state(value)) is not None
    ]
    try:
        yield
    finally:
        for one, held in attributes:
            _put_back(one, held, keeps_open)
        for put, before in states:
            put(before)


def _put_back(one: object, held: dict[str, object], keeps_open: bool) -> None:
    now = vars(one)
    if keeps_open:
        now.update({name: value for name, value in held.items() if type(value) in (int, float)})
    elif any(now.get(name, now) is not value for name, value in held.items()) or len(now) != len(
        held
    ):
        now.clear()
        now.update(held)


def _state(value: Any) -> tuple[Callable[[Any], object], object] | None:
    """Return the function that restores a random generator or a file, and its present state."""
    kind = type(value)
    if hasattr(kind, "bit_generator"):  # numpy's Generator
        return partial(setattr, value.bit_generator, "state"), value.bit_generator.state
    if isinstance(value, random.Random):
        return value.setstate, value.getstate()
    if kind.__name__ in ("Generator", "RandomState"):  # torch's, and numpy's older one
        return value.set_state, value.get_state()
    if hasattr(kind, "seek") and hasattr(kind, "tell"):
        return value.seek, value.tell()
    return None


def _is_read_once(value: object) -> bool:
    return hasattr(type(value), "__next__") and not hasattr(type(value), "seek")


def objects_of(dataset: object) -> list[object]:
    """Return the data set, the data sets inside it, and their transforms, outermost first."""
    found: dict[int, object] = {}
    waiting = [dataset]
    while waiting and len(found) < OBJECTS_AT_MOST:
        one = waiting.pop(0)
        if (
            id(one) in found
            or not (isinstance(one, Dataset) or one is dataset or _is_transform(one))
            or not hasattr(one, "__dict__")
        ):
            continue
        found[id(one)] = one
        for value in vars(one).values():
            waiting += value[:MEMBERS_AT_MOST] if isinstance(value, list | tuple) else [value]
    return list(found.values())


def _is_transform(one: object) -> bool:
    return callable(one) and not isinstance(
        one, type | FunctionType | MethodType | torch.nn.Module | torch.Tensor
    )
