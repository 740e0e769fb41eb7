"""Iterable datasets: each rank keeps its share of every global batch, in each of its workers."""

from __future__ import annotations

import io
import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torchbus.plugin import DataPlace, Share, random_streams

from torchbus_sampler._compat import auto_collation, pin_memory
from torchbus_sampler.shares import share_out, share_sizes


class SharedBatch:
    """A collated batch on its way from a worker, with this rank's share of the global batch."""

    def __init__(self, batch: object, share: Share) -> None:
        self.batch = batch
        self.share = share

    def pin_memory(self) -> SharedBatch:
        return SharedBatch(pin_memory(self.batch), self.share)


class DividedStream(IterableDataset[object]):
    """Reads a global batch of ``chunk_items`` samples at a time, and yields this rank's share.

    The share is contiguous. ``head`` is an iterator that has begun already, for datasets that can
    be read only once. ``shares`` are those of batches that this process (a worker) has begun and
    not collated yet.
    """

    def __init__(
        self,
        dataset: Any,
        rank: int,
        num_ranks: int,
        chunk_items: int,
        drop_last: bool,
        batched: bool,
        head: Iterable[object] | None,
    ) -> None:
        self.dataset = dataset
        self.shares: deque[Share] = deque()
        self._rank = rank
        self._num_ranks = num_ranks
        self._chunk_items = chunk_items
        self._drop_last = drop_last
        self._batched = batched
        self._head = head

    def __iter__(self) -> Iterator[object]:
        source, self._head = iter(self.dataset if self._head is None else self._head), None
        self.shares.clear()
        last: list[object] = []
        position = 0
        while chunk := list(islice(source, self._chunk_items)):
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


class Once(IterableDataset[object]):
    """A dataset from an iterator that has begun already."""

    def __init__(self, source: Iterable[object]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[object]:
        return iter(self._source)


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
    head: Iterable[object] | None,
) -> dict[str, object]:
    """Return new attributes for a loader, with which it reads this rank's share of its stream."""
    batched, items = auto_collation(loader), (loader.batch_size or 1) * batches_per_step
    stream = DividedStream(loader.dataset, *place, items, loader.drop_last, batched, head)
    replacements = {"dataset": stream, "collate_fn": Collate(loader.collate_fn, stream)}
    return replacements | (
        {"batch_sampler": BatchSampler(loader.sampler, stream.batch_size, False)} if batched else {}
    )


def probe(dataset: Any) -> tuple[int, Iterable[object] | None]:
    """Return a digest of the first item, and the iterator if the dataset can be read only once.

    The random numbers that the dataset draws for it are restored.
    """
    state = random_streams.read()
    source = iter(dataset)
    first = list(islice(source, 1))
    random_streams.write(state)
    once = source is dataset or iter(dataset) is source
    return zlib.crc32(_bytes(first)), chain(first, source) if once else None


def _bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    try:
        _ByContent(buffer).dump(value)
    except Exception:
        return type(value).__name__.encode()
    return buffer.getvalue()


class _ByContent(pickle.Pickler):
    """Pickles tensors by their values. Torch's own pickling writes addresses."""

    def reducer_override(self, value: Any) -> Any:
        return (list, (value.tolist(),)) if isinstance(value, Tensor) else NotImplemented
