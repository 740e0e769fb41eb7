"""Reads the first item of an iterable dataset: if ranks get different ones, it divides itself."""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from torchbus_sampler.content.probe import as_before, objects_of
from torchbus_strategy import random_streams


@dataclass
class Beginning:
    """An iteration that has begun. ``random`` has the generators' states after the first item."""

    items: Iterator[object]
    random: dict[str, Any] | None = None

    def go_on(self) -> Iterator[object]:
        """Restore the generators' states after the first item, and return the iterator."""
        if self.random is not None:
            random_streams.write(self.random)
        return self.items


class Begun(IterableDataset[object]):
    """A dataset whose only iteration has begun."""

    def __init__(self, items: Iterator[object]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[object]:
        return self._items


def begin(loader: DataLoader[object]) -> tuple[int, Beginning | None]:
    """Read the first item. Return its digest, and the iteration for the pass to continue.

    The generators are restored. Workers read the dataset separately, so with workers the dataset is
    restored too, and no iteration is returned, unless the dataset can be read only once.
    """
    before = random_streams.read()
    try:
        if loader.num_workers:
            return _look(loader.dataset)
        _draw_as_the_loader(loader)
        source = iter(loader.dataset)
        first = list(islice(source, 1))
        return _digest(first), Beginning(chain(first, source), random_streams.read())
    finally:
        random_streams.write(before)


def left_whole(begun: Beginning | None) -> dict[str, object]:
    """Return the new attributes of a loader whose dataset divides itself.

    The common generators are advanced, so that the next pass has another order.
    """
    random_streams.seed(int(torch.randint(2**62, (1,))))
    return {} if begun is None else {"dataset": Begun(begun.items)}


def _look(dataset: Any) -> tuple[int, Beginning | None]:
    with as_before(objects_of(dataset), keeps_open=False):
        source = iter(dataset)
        first = list(islice(source, 1))
        once = source is dataset or iter(dataset) is source
    return _digest(first), Beginning(chain(first, source)) if once else None


def _draw_as_the_loader(loader: DataLoader[object]) -> None:
    """Draw what the loader draws before it reads: a seed for workers."""
    if loader.generator is None:
        torch.empty((), dtype=torch.int64).random_()


def _digest(value: object) -> int:
    buffer = io.BytesIO()
    try:
        _ByContent(buffer).dump(value)
    except Exception:
        return zlib.crc32(type(value).__name__.encode())
    return zlib.crc32(buffer.getvalue())


class _ByContent(pickle.Pickler):
    """Pickles tensors by their values. Torch's own pickling writes addresses."""

    def reducer_override(self, value: Any) -> Any:
        return (list, (value.tolist(),)) if isinstance(value, Tensor) else NotImplemented
