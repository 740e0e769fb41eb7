"""Where the loop is in its data."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchbus import inventory
from torchbus.errors import UsageError
from torchbus.seams.loader import LoaderIterator

CONTAINERS = (list, tuple, Mapping)  # a union, made anew for every batch, costs half a microsecond
PARTS = (Tensor, *CONTAINERS)


class Place:
    """The iterators that handed over the batch which the loop works on: several where loaders are zipped."""

    def __init__(self) -> None:
        self.recent: list[weakref.ref[LoaderIterator]] = []
        self.pending = False

    def took(self, iterator: LoaderIterator) -> None:
        """The loop was handed a batch."""
        if not self.pending:
            self.recent.clear()
            self.pending = True
        self.recent.append(weakref.ref(iterator))

    @property
    def iterator(self) -> LoaderIterator | None:
        """The first of them; None where the loop has none, or has left it."""
        return self.recent[0]() if self.recent else None

    @property
    def is_last(self) -> bool:
        """Whether any of them has no batch left."""
        for reference in self.recent:
            iterator = reference()
            if iterator is not None and iterator.is_last:
                return True
        return False

    def leave(self) -> None:
        self.recent.clear()
        self.pending = False


def expected_samples(iterator: LoaderIterator, samples: float, window: int) -> float:
    """How many samples the window that begins with this batch of ``samples`` will have, as far as the loader tells."""
    left = iterator.batches_left
    whole = samples * (window if left is None or left < 0 else min(window, left + 1))
    sampler = iterator.loader.batch_sampler
    if type(sampler) is not BatchSampler or sampler.drop_last or not hasattr(sampler.sampler, "__len__"):
        return whole
    rest = len(sampler.sampler) - (iterator.taken - 1) * samples  # type: ignore[arg-type]
    return min(whole, rest) if rest >= samples else whole


def rows(batch: Any) -> int:
    """Number of samples in a batch: dim 0 of the first tensor in it; 1 if there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, CONTAINERS):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            if isinstance(part, PARTS):
                return rows(part)
    return 1


def last_by_torch() -> bool:
    """For a pass that began before anybody listened: what torch's own iterator has counted."""
    begun = [iterator for iterator in inventory.alive(_BaseDataLoaderIter) if iterator._num_yielded]  # type: ignore[type-abstract]
    if not begun:
        raise UsageError("s.is_last_batch: no DataLoader is being iterated")
    try:
        return bool(begun[-1]._num_yielded == len(begun[-1]))
    except TypeError:
        raise UsageError("s.is_last_batch: the loader has no length; pass 'accumulate' to session(...), so that it is read ahead") from None
