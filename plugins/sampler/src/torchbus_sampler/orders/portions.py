"""The start and length of a rank's share of a global batch.

This does what ``share_out`` and ``one_each`` do, without going through the other ranks' shares.
"""

from __future__ import annotations

from typing import NamedTuple


class Portion(NamedTuple):
    """``length`` samples, from ``start`` on, of a global batch."""

    start: int
    length: int


class Portions:
    """How global batches are split.

    ``batch_size``: that of the script's own batches, or 1 for a sampler of single indices.
    ``at_least``: the smallest share, if possible.
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

    def own(self, rank: int, count: int) -> Portion:
        """Give each rank one of the script's own batches, as long as there are some.

        If a batch has only one sample, split as ``of`` does.
        """
        size = self._batch_size
        whole, rest = divmod(count, size)
        if whole + bool(rest) > 1 and (size < 2 or rest == 1):
            return self.of(rank, count)
        return Portion(min(rank * size, count), max(0, min(size, count - rank * size)))


def even(rank: int, count: int, num_ranks: int, at_least: int) -> Portion:
    """Split as evenly as ``share_sizes``: at least so many each if possible, rank 0 first."""
    sharers = min(num_ranks, max(1, count // at_least))
    size, rest = divmod(count, sharers)
    if rank >= sharers:
        return Portion(count, 0)
    return Portion(rank * size + min(rank, rest), size + (rank < rest))
