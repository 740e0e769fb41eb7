"""Where a rank's share of a global batch begins and how long it is: ``share_out`` and ``one_each`` without walking the other ranks' shares."""

from __future__ import annotations

from typing import NamedTuple


class Portion(NamedTuple):
    """``length`` samples, from ``start`` on, of a global batch."""

    start: int
    length: int


class Portions:
    """How global batches are cut. ``batch_size``: of the script's own batches; 1 for a sampler of single indices, which are shared out in
    shares of at least one (``at_least``)."""

    def __init__(self, num_ranks: int, batch_size: int, at_least: int) -> None:
        self._num_ranks = num_ranks
        self._batch_size = batch_size
        self._at_least = at_least

    def of(self, rank: int, count: int) -> Portion:
        """Of a global batch of ``count`` samples: one batch each where there are as many full ones, otherwise shares as even as can be."""
        size = self._batch_size
        if count == self._num_ranks * size:
            return Portion(rank * size, size)
        largest = even(0, count, self._num_ranks, self._at_least).length
        return even(rank, count, self._num_ranks, self._at_least if largest <= size else 1)

    def own(self, rank: int, count: int) -> Portion:
        """The script's batches as they are, one for each rank as far as they go; as ``of`` where one has a single sample."""
        size = self._batch_size
        whole, rest = divmod(count, size)
        if whole + bool(rest) > 1 and (size < 2 or rest == 1):
            return self.of(rank, count)
        return Portion(min(rank * size, count), max(0, min(size, count - rank * size)))


def even(rank: int, count: int, num_ranks: int, at_least: int) -> Portion:
    """The same as ``share_sizes``: as even as can be, with at least so many each where possible, rank 0 first."""
    sharers = min(num_ranks, max(1, count // at_least))
    size, rest = divmod(count, sharers)
    if rank >= sharers:
        return Portion(count, 0)
    return Portion(rank * size + min(rank, rest), size + (rank < rest))
