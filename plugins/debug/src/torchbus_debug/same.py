"""Repeats the same samples in each pass."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torchbus.plugin import Context, hookimpl

from torchbus_strategy import random_streams

SEED = 0


class Fixed:
    """Gives the same indices in each pass, in place of a sampler, whose attributes it has.

    So the script's ``loader.sampler.set_epoch(epoch)`` works, and the session sees that the sampler
    divides the data.
    """

    def __init__(self, sampler: Iterable[Any], count: int | None) -> None:
        self._indices = drawn(sampler, count)
        self._sampler = sampler

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __iter__(self) -> Iterator[object]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class SameSamples:
    """Draws the order of each loader once, from a separate generator.

    So the order is the same on all ranks and in a run that resumes, and the loop's random numbers
    are not used for it. A stream of an ``IterableDataset`` stays as it is.
    """

    def __init__(self, session: Context, limit: float) -> None:
        """``limit``: how many batches each rank needs at most; a float is a part of them."""
        self._session = session
        self._limit = limit
        self._fixed: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    @hookimpl(tryfirst=True)
    def loader_start(self, loader: DataLoader[object]) -> None:
        if (
            loader in self._fixed
            or isinstance(loader.dataset, IterableDataset)
            or not self._session.captures(loader)
        ):
            return
        self._fixed.add(loader)
        mine = {name: loader.__dict__[name] for name in ("batch_sampler", "sampler")}
        parts = self._session.world.data.parts
        batches = self._limit * parts if isinstance(self._limit, int) else None
        loader.__dict__.update(_fixed(loader, batches))
        known = weakref.ref(loader)
        self._session.on_close.callback(_put_back, known, mine)


def _put_back(known: weakref.ref[DataLoader[object]], attributes: dict[str, object]) -> None:
    loader = known()
    if loader is not None:
        loader.__dict__.update(attributes)


def _fixed(loader: DataLoader[Any], count: int | None) -> dict[str, object]:
    """Return what takes the place of the loader's samplers, for so many batches; None: all."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler:
        samples = None if count is None else count * batches.batch_size
        sampler: Any = Fixed(batches.sampler, samples)
        instead = BatchSampler(sampler, batches.batch_size, batches.drop_last)
        return {"batch_sampler": instead, "sampler": sampler}
    if batches is not None:
        return {"batch_sampler": Fixed(batches, count)}
    return {"sampler": Fixed(loader.sampler, count)}


def drawn(sampler: Iterable[Any], count: int | None) -> list[Any]:
    """Draw from a sampler by random numbers that are the same in every run.

    Afterwards the generators, one of the sampler's own included, are as they were.
    """
    own = getattr(sampler, "generator", None)
    before, own_before = random_streams.read(), own.get_state() if own is not None else None
    try:
        for generator in (torch.default_generator, own):
            if generator is not None:
                generator.manual_seed(SEED)
        random.seed(SEED)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(SEED)
        return list(islice(sampler, count))
    finally:
        random_streams.write(before)
        if own is not None:
            own.set_state(own_before)
