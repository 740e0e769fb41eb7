"""The index sampler of one pass over a loader: each rank's share of the user's own order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from itertools import islice
from typing import Any, TypeGuard, cast

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
from torchbus.plugin import Share
from torchbus.runtime.services import RandomService

from torchbus_sampler._compat import index_sampler
from torchbus_sampler.orders.shared import checksum_of, digest

DRAW_ONCE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# the attributes in which a subset of a data set holds the indices of its samples
CHOICES = ("indices", "idxs", "indexs", "indexes", "idx")


class DividedOrder:
    """Replaces a loader's ``batch_sampler`` for one pass, or ``sampler`` if ``batch_size=None``.

    It draws lazily, one global batch (``batches_per_step`` of the user's batches) at a time.

    ``pending`` has the shares of drawn batches that the loop has not got yet. With
    ``first_local``, each rank gets one of the script's own batches in the first step; if a step has
    only one batch, rank 0 gets it. ``began_whole`` is True if rank 0 got the script's first batch.
    """

    def __init__(
        self,
        inner: Iterable[object],
        rank: int,
        num_ranks: int,
        batches_per_step: int,
        batched: bool,
        random: RandomService,
        pad: bool = True,
        dataset: object = None,
        first_local: bool = False,
    ) -> None:
        self._inner = inner
        self._rank = rank
        self._num_ranks = num_ranks
        self._batches_per_step = batches_per_step
        self._batched = batched
        self._random = random
        self._pad = pad
        self._dataset = dataset
        self._first_local = first_local
        self.began_whole = True
        # whether the user's sampler draws single indices, not batches
        self._single = False
        self.pending: deque[Share] = deque()
        self.source: Iterator[object] | None = None  # the script's own order, if it has begun

    def __iter__(self) -> Iterator[object]:
        self.pending.clear()
        position = chosen(self._dataset)
        last: list[object] = []
        first = True
        for batches in self._steps():
            shares = one_each(batches, self._num_ranks) if first and self._first_local else []
            shares = shares or share_out(
                batches, self._num_ranks, self._batch_size(), 1 if self._single else 2
            )
            if first:
                self.began_whole, first = shares[0] == list(batches[0]), False
            position = digest([index for share in shares for index in share], position)
            mine = shares[self._rank]
            if not mine and not self._pad:
                return
            weight = len(mine) * self._num_ranks / sum(map(len, shares))
            last = mine or last or shares[0]
            self.pending.append(
                Share(weight if self._pad else 1.0, position, tuple(mine), sum(map(len, shares)))
            )
            yield last[0] if self._single else last

    def take(self) -> Share:
        """Remove and return the share of the next drawn batch, which the loop gets."""
        return self.pending.popleft()

    def forget(self, count: int) -> None:
        """Drop the shares of the next ``count`` drawn batches, which the loop skips."""
        for _ in range(count):
            self.pending.popleft()

    def __len__(self) -> int:
        """The number of batches of this rank."""
        return steps_in(self._inner, self._num_ranks, self._batches_per_step)

    @property
    def is_ragged(self) -> bool:
        """Whether the ranks' weights will differ in some step, as far as can be foreseen."""
        inner = self._inner
        if self._num_ranks == 1 or not self._pad or not is_plain(inner):
            return False
        try:
            remaining = _length(inner.sampler) % (inner.batch_size * self._batches_per_step)
        except TypeError:
            return False
        return self._first_local or bool(remaining and not inner.drop_last)

    def _batch_size(self) -> int | None:
        return self._inner.batch_size if is_plain(self._inner) else None

    def _steps(self) -> Iterator[list[Sequence[object]]]:
        """Yield the user's batches of each global batch."""
        drop_last = getattr(self._inner, "drop_last", False)
        for batches in self._draw(self._batches_per_step):
            if len(batches) < self._batches_per_step and drop_last:
                return
            yield batches

    def _draw(self, count: int) -> Iterator[list[Sequence[object]]]:
        """Yield ``count`` of the user's batches at a time, drawn from the random stream "order".

        Changing the stream takes as long as drawing many indices. So it is done once for ``count``
        batches, or once per pass for torch's samplers, which use the stream at the first index.
        """
        draws_once = isinstance(getattr(self._inner, "sampler", self._inner), DRAW_ONCE)
        with self._random.order():
            source = iter(self._inner) if self.source is None else self.source
            batches = self._next(source, count)
        while batches:
            yield batches
            if len(batches) < count:
                return
            with nullcontext() if draws_once else self._random.order():
                batches = self._next(source, count)

    def _next(self, source: Iterator[object], count: int) -> list[Sequence[object]]:
        batches: list[Any] = []
        for item in islice(source, count):
            self._single = not self._batched and not isinstance(item, list | tuple)
            batches.append([item] if self._single else item)
        return batches


def is_plain(inner: object) -> TypeGuard[BatchSampler]:
    """Whether ``inner`` is torch's or torchdata's own class, which makes batches of one size."""
    return type(inner) is BatchSampler or (
        isinstance(inner, BatchSampler) and type(inner).__module__.startswith("torchdata.")
    )


def _length(sized: object) -> int:
    """Return the length. Raises TypeError if there is none."""
    return len(cast(Sized, sized))


def steps_in(inner: Iterable[object], num_ranks: int, batches_per_step: int) -> int:
    """Return the number of global batches in an index sampler."""
    if is_plain(inner):
        samples = _length(inner.sampler)
        global_size = inner.batch_size * batches_per_step
        return samples // global_size if inner.drop_last else -(-samples // global_size)
    batches = _length(inner)
    whole, remaining = divmod(batches, batches_per_step)
    return whole + bool(remaining and not getattr(inner, "drop_last", False))


def length_of(loader: DataLoader[object], parts: int, batches_per_step: int) -> int:
    """Return how many batches a divided loader gives to each rank."""
    if not isinstance(loader.dataset, IterableDataset):
        return steps_in(index_sampler(loader), parts, batches_per_step)
    items = (loader.batch_size or 1) * batches_per_step
    length = _length(loader.dataset)
    return length // items if loader.drop_last else -(-length // items)


def chosen(dataset: object) -> int:
    """Return a checksum of the samples in a subset of a data set, or 0 for a whole data set.

    If the subsets differ between ranks, equal indices mean different samples.
    """
    number = 0
    while isinstance(dataset, Dataset):
        held = getattr(dataset, "__dict__", {})
        for name in CHOICES:
            indices: Any = held.get(name)
            indices = indices.tolist() if hasattr(indices, "tolist") else indices
            if (
                isinstance(indices, list | tuple | range)
                and hasattr(dataset, "__len__")
                and len(indices) == _length(dataset)
            ):
                number = checksum_of(indices, number)
        dataset = held.get("dataset")
    return number


def share_sizes(num_samples: int, num_ranks: int, at_least: int = 2) -> list[int]:
    """Return the sizes of the ranks' shares, rank 0 first.

    They are as even as possible. Each rank gets ``at_least`` samples where possible: two by
    default, because BatchNorm rejects a batch of one. With too few samples, the last ranks get
    none.

    >>> share_sizes(7, 3), share_sizes(5, 3), share_sizes(1, 2)
    ([3, 2, 2], [3, 2, 0], [1, 0])
    """
    sharers = min(num_ranks, max(1, num_samples // at_least)) if num_samples else 0
    if not sharers:
        return [0] * num_ranks
    size, remaining = divmod(num_samples, sharers)
    return [size + (rank < remaining) if rank < sharers else 0 for rank in range(num_ranks)]


def share_out(
    batches: Sequence[Sequence[object]], num_ranks: int, batch_size: int | None, at_least: int = 2
) -> list[list[object]]:
    """Return each rank's indices, from consecutive batches of the user's order.

    If there is a full batch for each rank, rank r gets batch r. Otherwise, at the end of a pass or
    with one batch for all ranks, each rank gets a contiguous share, which is at most as large as
    the script's batch. If ``batch_size`` is None, the user's batches vary in size.
    """
    if len(batches) == num_ranks and all(
        batch_size is None or len(batch) == batch_size for batch in batches
    ):
        return [list(batch) for batch in batches]
    indices = [index for batch in batches for index in batch]
    sizes = share_sizes(len(indices), num_ranks, at_least)
    if batch_size is not None and max(sizes) > batch_size:
        sizes = share_sizes(len(indices), num_ranks, 1)
    shares, start = [], 0
    for size in sizes:
        shares.append(indices[start : start + size])
        start += size
    return shares


def one_each(batches: Sequence[Sequence[object]], num_ranks: int) -> list[list[object]]:
    """Give each rank one of the script's batches, or nothing if there are too few.

    Returns [] if one of them has only one sample.

    >>> one_each([[0, 1, 2], [3, 4]], 3), one_each([[0, 1, 2], [3]], 3)
    ([[0, 1, 2], [3, 4], []], [])
    """
    if len(batches) > 1 and any(len(batch) < 2 for batch in batches):
        return []
    return [*map(list, batches), *([] for _ in range(num_ranks - len(batches)))]
