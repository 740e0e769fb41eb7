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


class Place:
    """The iterators that handed over the batch which the loop works on: several where loaders are zipped."""

    def __init__(self) -> None:
        self._recent: list[weakref.ref[LoaderIterator]] = []
        self.pending = False

    def took(self, iterator: LoaderIterator) -> None:
        """The loop was handed a batch."""
        if not self.pending:
            self._recent.clear()
            self.pending = True
        self._recent.append(weakref.ref(iterator))

    @property
    def iterator(self) -> LoaderIterator | None:
        """The first of them; None where the loop has none, or has left it."""
        return self._recent[0]() if self._recent else None

    @property
    def is_last(self) -> bool:
        """Whether any of them has no batch left."""
        return any(iterator.is_last for iterator in (reference() for reference in self._recent) if iterator is not None)

    def leave(self) -> None:
        self._recent.clear()
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
        return len(batch) if batch.dim() else 1
    if isinstance(batch, Mapping | list | tuple):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        return next((rows(part) for part in parts if isinstance(part, Tensor | Mapping | list | tuple)), 1)
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
