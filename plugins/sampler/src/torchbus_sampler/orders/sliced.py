"""A divided order of one of torch's samplers. Each step reads only this rank's slice of it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchbus.plugin import Share

from torchbus_sampler.order import DividedOrder, chosen
from torchbus_sampler.orders import kinds
from torchbus_sampler.orders.shared import SharedArrays

PLACE = struct.Struct("<qqqq")


class SlicedOrder(DividedOrder):
    """Reads slices of torch's own samplers, and draws from others as its base class does."""

    def __init__(self, *place: Any, memory: SharedArrays) -> None:
        super().__init__(*place)
        self._memory = memory
        self._skipped = 0

    def __iter__(self) -> Iterator[object]:
        inner: object = self._inner
        self._skipped = 0
        if kinds.is_batching(inner):
            if kinds.is_known(inner.sampler):
                return Slices(self, inner.sampler, inner.batch_size)
        elif not self._batched and kinds.is_known(inner):
            return Slices(self, inner, None)
        return super().__iter__()

    def forget(self, count: int) -> None:
        known, self._skipped = self._skipped, 0
        super().forget(count - known)


class Slices:
    """The iterator of a ``SlicedOrder``. Like torch's, it draws at the first ``next``.

    If ``batch_size`` is None, the sampler yields single indices.
    """

    def __init__(self, order: SlicedOrder, sampler: Any, batch_size: int | None) -> None:
        self._order = order
        self._sampler = sampler
        self._single = batch_size is None
        size = batch_size or 1
        self._step_size = size * order._batches_per_step
        self._portions = Portions(order._num_ranks, size, 1 if self._single else 2)
        self._whole = self._portions.of(order._rank, self._step_size)
        self._drops = bool(getattr(order._inner, "drop_last", False))
        self._step = 0
        self._over = False
        self._last: list[object] = []
        self._drawn: Any = None  # begun at the first step

    def __iter__(self) -> Slices:
        return self

    def __next__(self) -> object:
        start, count, portion = self._take()
        order = self._order
        first = start + portion.start
        mine = self._drawn.indices(first, first + portion.length)
        if mine:
            self._last = mine
        elif not order._pad:
            self._end()
        elif not self._last:
            self._last = self._drawn.indices(start, start + self._portion(0, start, count).length)
        weight = portion.length * order._num_ranks / count if order._pad else 1.0
        order.pending.append(
            Share(weight, self._position(start, start + count), tuple(mine), count)
        )
        return self._last[0] if self._single else self._last

    def skip(self, count: int) -> None:
        """Skip ``count`` steps. Raises StopIteration if there are fewer."""
        # a rank without samples repeats its first batch, so it must read that one
        repeats = (
            count > 1
            and not self._step
            and not self._portion(self._order._rank, 0, self._step_size).length
        )
        for steps in (1, count - 1) if repeats else (count,):
            if steps > 0:
                self._step += steps - 1
                next(self)
                self._order.pending.pop()
        self._order._skipped += count

    def _take(self) -> tuple[int, int, Portion]:
        """Return where the next step begins, how many samples it has, and this rank's portion."""
        if self._over:
            raise StopIteration
        drawn, start = self._drawn, self._step * self._step_size
        if drawn is not None and 0 < start <= drawn.total - self._step_size:  # the usual case
            drawn.reach(start, start + self._step_size)
            self._step += 1
            return start, self._step_size, self._whole
        if drawn is None:
            with self._order._random.order():
                self._begin()
                start, count = self._reach()
        else:
            start, count = self._reach()
        self._step += 1
        if not count:
            self._end()
        return start, count, self._portion(self._order._rank, start, count)

    def _begin(self) -> None:
        order = self._order
        order.pending.clear()
        self._base = chosen(order._dataset)
        self._drawn = kinds.begin(self._sampler, order._memory)
        count = min(self._step_size, self._drawn.total)
        first = min(self._step_size // order._batches_per_step, count)
        order.began_whole = not count or self._portion(0, 0, count).length == first

    def _reach(self) -> tuple[int, int]:
        drawn, start = self._drawn, self._step * self._step_size
        stop = start + self._step_size
        if stop <= drawn.total:
            drawn.reach(start, stop)
            return start, self._step_size
        start = min(start, drawn.total)
        drawn.finish(start)
        return start, 0 if self._drops else drawn.total - start

    def _portion(self, rank: int, start: int, count: int) -> Portion:
        if not start and self._order._first_local:
            return self._portions.one_batch_each(rank, count)
        return self._portions.of(rank, count)

    def _position(self, start: int, stop: int) -> int:
        drawn = self._drawn
        return zlib.crc32(PLACE.pack(start, stop, drawn.digest(stop), drawn.checksum), self._base)

    def _end(self) -> None:
        self._over = True
        self._drawn.close()
        raise StopIteration


class Portion(NamedTuple):
    """The ``length`` samples of a global batch that begin at ``start``."""

    start: int
    length: int


class Portions:
    """Splits global batches.

    ``batch_size`` is that of the script's own batches, or 1 for a sampler of single indices.
    ``at_least`` is the size of the smallest share, if possible.
    """

    def __init__(self, num_ranks: int, batch_size: int, at_least: int) -> None:
        self._num_ranks = num_ranks
        self._batch_size = batch_size
        self._at_least = at_least

    def of(self, rank: int, count: int) -> Portion:
        """Return the share of a global batch of ``count`` samples.

        If there is a full batch for each rank, each gets one. Otherwise shares are as even as
        possible.
        """
        size = self._batch_size
        if count == self._num_ranks * size:
            return Portion(rank * size, size)
        largest = even(0, count, self._num_ranks, self._at_least).length
        return even(rank, count, self._num_ranks, self._at_least if largest <= size else 1)

    def one_batch_each(self, rank: int, count: int) -> Portion:
        """Give each rank one of the script's own batches, or nothing if there are too few.

        If one of several batches has only one sample, split as ``of`` does.
        """
        size = self._batch_size
        whole, remaining = divmod(count, size)
        if whole + bool(remaining) > 1 and (size < 2 or remaining == 1):
            return self.of(rank, count)
        return Portion(min(rank * size, count), max(0, min(size, count - rank * size)))


def even(rank: int, count: int, num_ranks: int, at_least: int) -> Portion:
    """Split as evenly as ``share_sizes``: if possible ``at_least`` each, rank 0 first."""
    sharers = min(num_ranks, max(1, count // at_least))
    size, remaining = divmod(count, sharers)
    if rank >= sharers:
        return Portion(count, 0)
    return Portion(rank * size + min(rank, remaining), size + (rank < remaining))
