"""Which row is advised, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchbus_advise.estimate.rows import Row

AS_FAST = 1.05
"""Rows within 5 % of the fastest are equals: the estimate is no better than that."""
MOST_RANKS = 1024


@dataclass(frozen=True)
class Choice:
    """``row``: None if nothing fits any number of GPUs. ``needs_ranks``: the number of GPUs with
    which something fits, if it is more than was asked for. ``needs_batch``: the batch of a rank
    with which the row fits, if it is less than the script's."""

    row: Row | None
    needs_ranks: int | None = None
    needs_batch: int | None = None


def fastest(rows: Sequence[Row]) -> Row | None:
    """Of those that fit the one that is fastest for each sample, and of equals the first."""
    fitting = [row for row in rows if row.fits and row.plan.accumulated == 1]
    if not fitting:
        return None
    least_s = min(row.seconds_per_sample for row in fitting)
    return next(row for row in fitting if row.seconds_per_sample <= AS_FAST * least_s)


def choose(rows_for: Callable[[int], Sequence[Row]], ranks: int) -> Choice:
    """``rows_for``: the rows of a number of ranks."""
    rows = rows_for(ranks)
    best = fastest(rows)
    if best is not None:
        return Choice(best)
    smaller = [row for row in rows if row.largest_batch and row.plan.accumulated == 1]
    if smaller:
        largest = max(smaller, key=lambda row: row.largest_batch)
        return Choice(largest, needs_batch=largest.largest_batch)
    more = ranks * 2
    while more <= MOST_RANKS:
        best = fastest(rows_for(more))
        if best is not None:
            return Choice(best, needs_ranks=more)
        more *= 2
    return Choice(None)
