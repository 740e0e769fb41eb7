"""Iterable datasets: each rank keeps its share of every global batch, in each of its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, get_worker_info
from torchbus.plugin import DataPlace, LoaderPass, Share
from torchbus.runtime.services import RandomService

from torchbus_sampler._compat import auto_collation, pin_memory
from torchbus_sampler.content.first_item import Beginning
from torchbus_sampler.order import DividedOrder, share_out, share_sizes
from torchbus_strategy.random_streams import RandomStreams


def unpack(batch: object, divided: DividedOrder | None) -> tuple[Share, object]:
    """Return the share of a batch, and what the loop gets instead of the batch, if anything."""
    if isinstance(batch, SharedBatch):
        return batch.share, batch.batch
    return (Share() if divided is None else divided.take()), None


def divided_order(order: LoaderPass | None) -> DividedOrder | None:
    """Return the divided order that a pass draws from, if there is one."""
    found = (
        None
        if order is None
        else order.replacements.get("batch_sampler", order.replacements.get("sampler"))
    )
    return found if isinstance(found, DividedOrder) else None


class SharedBatch:
    """A collated batch from a worker, with this rank's share of the global batch."""

    def __init__(self, batch: object, share: Share) -> None:
        self.batch = batch
        self.share = share

    def pin_memory(self) -> SharedBatch:
        return SharedBatch(pin_memory(self.batch), self.share)


class DividedStream(IterableDataset[object]):
    """Reads a global batch of ``chunk_items`` samples at a time, and yields this rank's share.

    The share is contiguous. All ranks read with the same random numbers. ``begun`` is an iteration
    that the next pass continues; otherwise, a pass begins a new one. ``shares`` are those of
    batches that this process (perhaps a worker) has begun and not collated yet.
    """

    def __init__(
        self,
        dataset: Any,
        rank: int,
        num_ranks: int,
        chunk_items: int,
        drop_last: bool,
        batched: bool,
        begun: Beginning | None,
        random: RandomService,
    ) -> None:
        self.dataset = dataset
        self.shares: deque[Share] = deque()
        self._rank = rank
        self._num_ranks = num_ranks
        self._chunk_items = chunk_items
        self._drop_last = drop_last
        self._batched = batched
        self._begun = begun
        self._random = random
        self._random_of_worker: RandomService | None = None

    def __iter__(self) -> Iterator[object]:
        random = self._streams()
        with random.order():
            source = iter(self.dataset) if self._begun is None else self._begun.go_on()
        self._begun = None
        self.shares.clear()
        last: list[object] = []
        position = 0
        while chunk := self._read(source, random):
            if self._drop_last and len(chunk) < self._chunk_items:
                return
            position += len(chunk)
            shares = share_out([chunk], self._num_ranks, None, self._at_least(len(chunk)))
            mine = shares[self._rank]
            last = mine or last or shares[0]
            self.shares.append(
                Share(
                    len(mine) * self._num_ranks / len(chunk), position, range(len(mine)), len(chunk)
                )
            )
            yield from last

    def _read(self, source: Iterator[object], random: RandomService) -> list[object]:
        with random.order():
            return list(islice(source, self._chunk_items))

    def _streams(self) -> RandomService:
        """Return this process's streams. A worker's begin with the seed that all ranks drew."""
        if get_worker_info() is None:
            return self._random
        if self._random_of_worker is None:
            self._random_of_worker = RandomStreams()
            self._random_of_worker.split(self._rank)
        return self._random_of_worker

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a worker that is not forked, without the session's streams."""
        return {**vars(self), "_random": None}

    @property
    def batch_size(self) -> int:
        """The number of samples in each of this rank's batches but the last."""
        sizes = share_sizes(self._chunk_items, self._num_ranks, self._at_least(self._chunk_items))
        return sizes[self._rank] or sizes[0]

    def _at_least(self, num_items: int) -> int:
        """Return 2, unless a share would then be larger than the loader's batch.

        The loader would split such a share.
        """
        largest = max(share_sizes(num_items, self._num_ranks))
        return 2 if self._batched and largest <= -(-self._chunk_items // self._num_ranks) else 1


class Collate:
    """Calls the loader's own ``collate_fn``, and adds the share that the stream has noted."""

    def __init__(self, collate: Callable[[Any], object], stream: DividedStream) -> None:
        self._collate = collate
        self._stream = stream

    def __call__(self, items: object) -> SharedBatch:
        return SharedBatch(self._collate(items), self._stream.shares.popleft())


def divided_stream(
    loader: DataLoader[object],
    place: DataPlace,
    batches_per_step: int,
    begun: Beginning | None,
    random: RandomService,
) -> dict[str, object]:
    """Return new attributes for a loader, with which it reads this rank's share of its stream."""
    batched, items = auto_collation(loader), (loader.batch_size or 1) * batches_per_step
    stream = DividedStream(loader.dataset, *place, items, loader.drop_last, batched, begun, random)
    replacements = {"dataset": stream, "collate_fn": Collate(loader.collate_fn, stream)}
    return replacements | (
        {"batch_sampler": BatchSampler(loader.sampler, stream.batch_size, False)} if batched else {}
    )
