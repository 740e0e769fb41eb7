"""The index sampler of one pass over a loader: the user's own order, of which each rank draws its share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeGuard

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchbus.plugin import RandomStreams, Share

from torchbus_sampler.orders.array import checksum_of, digest
from torchbus_sampler.shares import one_each, share_out

DRAW_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
CHOICES = ("indices", "idxs", "indexs", "indexes", "idx")  # what a part of a data set calls the samples that it holds


class DividedOrder:
    """Replaces a loader's ``batch_sampler`` (or ``sampler`` where ``batch_size=None``) for one pass.

    Draws lazily: a global batch (``batches_per_step`` of the user's batches) at a time. ``pending`` are the shares
    of batches that were drawn and not yet taken by the loop. ``first_own``: the first step leaves the script's batches as they are, each
    on a rank, or on rank 0 where there is one for all. ``began_whole``: rank 0 got the script's own first batch.
    """

    def __init__(
        self,
        inner: Iterable[Any],
        rank: int,
        num_ranks: int,
        batches_per_step: int,
        batched: bool,
        random: RandomStreams,
        pad: bool = True,
        dataset: Any = None,
        first_own: bool = False,
    ) -> None:
        self._inner = inner
        self._rank = rank
        self._num_ranks = num_ranks
        self._batches_per_step = batches_per_step
        self._batched = batched
        self._random = random
        self._pad = pad
        self._dataset = dataset
        self._first_own = first_own
        self.began_whole = True
        self._single = False  # whether the user's sampler draws one index at a time, not batches of them
        self.pending: deque[Share] = deque()
        self.source: Any = None  # the script's own order, where it has been begun

    def __iter__(self) -> Iterator[Any]:
        self.pending.clear()
        position = chosen(self._dataset)
        last: list[Any] = []
        first = True
        for batches in self._steps():
            shares = one_each(batches, self._num_ranks) if first and self._first_own else []
            shares = shares or share_out(batches, self._num_ranks, self._batch_size(), 1 if self._single else 2)
            if first:
                self.began_whole, first = shares[0] == list(batches[0]), False
            position = digest([index for share in shares for index in share], position)
            mine = shares[self._rank]
            if not mine and not self._pad:
                return
            weight = len(mine) * self._num_ranks / sum(map(len, shares))
            last = mine or last or shares[0]
            self.pending.append(Share(weight if self._pad else 1.0, position, tuple(mine), sum(map(len, shares))))
            yield last[0] if self._single else last

    def forget(self, count: int) -> None:
        """So many of the batches that were drawn are not taken by the loop."""
        for _ in range(count):
            self.pending.popleft()

    def __len__(self) -> int:
        """Number of batches of this rank."""
        return steps_in(self._inner, self._num_ranks, self._batches_per_step)

    @property
    def is_ragged(self) -> bool:
        """Whether the ranks' shares will not weigh the same in all steps, as far as is known beforehand."""
        inner = self._inner
        if self._num_ranks == 1 or not self._pad or not is_plain(inner):
            return False
        try:
            rest = len(inner.sampler) % (inner.batch_size * self._batches_per_step)  # type: ignore[arg-type]
        except TypeError:
            return False
        return self._first_own or bool(rest and not inner.drop_last)

    def _batch_size(self) -> int | None:
        return self._inner.batch_size if is_plain(self._inner) else None

    def _steps(self) -> Iterator[list[Sequence[Any]]]:
        """The user's batches, as many at a time as make one global batch; drawn from the random stream "order"."""
        source = self._draw()
        drop_last = getattr(self._inner, "drop_last", False)
        while batches := list(islice(source, self._batches_per_step)):
            if len(batches) < self._batches_per_step and drop_last:
                return
            yield batches

    def _draw(self) -> Iterator[Sequence[Any]]:
        source = iter(self._inner) if self.source is None else self.source
        draws_once = isinstance(getattr(self._inner, "sampler", self._inner), DRAW_ONCE)
        done: Any = object()
        first = True
        while True:
            if first or not draws_once:
                with self._random.order():
                    item = next(source, done)
            else:
                item = next(source, done)
            if item is done:
                return
            first = False
            self._single = not self._batched and not isinstance(item, list | tuple)
            yield [item] if self._single else item


def is_plain(inner: Any) -> TypeGuard[BatchSampler]:
    """Whether it cuts the order of its sampler into batches of one size: torch's own class, and torchdata's."""
    return type(inner) is BatchSampler or (isinstance(inner, BatchSampler) and type(inner).__module__.startswith("torchdata."))


def steps_in(inner: Iterable[Any], num_ranks: int, batches_per_step: int) -> int:
    """How many global batches an index sampler holds."""
    if is_plain(inner):
        samples = len(inner.sampler)  # type: ignore[arg-type]
        global_size = inner.batch_size * batches_per_step
        return samples // global_size if inner.drop_last else -(-samples // global_size)
    batches = len(inner)  # type: ignore[arg-type]
    whole, rest = divmod(batches, batches_per_step)
    return whole + bool(rest and not getattr(inner, "drop_last", False))


def length_of(loader: DataLoader[Any], parts: int, batches_per_step: int) -> int:
    """How many batches a divided loader gives to each rank."""
    if not isinstance(loader.dataset, IterableDataset):
        return steps_in(loader._index_sampler, parts, batches_per_step)
    items = (loader.batch_size or 1) * batches_per_step
    length = len(loader.dataset)  # type: ignore[arg-type]
    return length // items if loader.drop_last else -(-length // items)


def chosen(dataset: Any) -> int:
    """A checksum of which samples a part of a data set holds (``Subset``, and classes of scripts like it), 0 if it is
    whole. One order means other samples on ranks that have chosen other parts."""
    number = 0
    while isinstance(dataset, Dataset):
        held = getattr(dataset, "__dict__", {})
        for name in CHOICES:
            indices: Any = held.get(name)
            indices = indices.tolist() if hasattr(indices, "tolist") else indices
            if isinstance(indices, list | tuple | range) and hasattr(dataset, "__len__") and len(indices) == len(dataset):
                number = checksum_of(indices, number)
        dataset = held.get("dataset")
    return number
