"""Losses that all ranks divide by one constant: the number of samples of all ranks, or a number that nobody knows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from torch import Tensor

from torchbus._loss.graph import Divisors, Number, same
from torchbus._loss.messages import NEITHER

if TYPE_CHECKING:
    from torchbus._session.context import Context

ALIKE_FOR = 3


class Constants:
    """Of the losses of a session. ``found``: those that turned out to be numbers of samples of all ranks."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self.found: set[float] = set()
        self._alike = 0
        self._before = 0.0

    def target(self, own: Number | None, divisors: Divisors, sizes: Sequence[int]) -> float:
        """The mean weight of what all ranks divide by the same: 1 for a loss that is normalised over ranks already; as many as there are parts
        for one that all of them divide by the number of samples of all."""
        share, parts = self._session.share, self._session.world.data.parts
        if own is None or isinstance(own, Tensor) or not share.count:
            return 1.0
        if share.count >= 2 * parts and self._divides_by(share.count, divisors, sizes):
            self.found.add(own)  # all ranks have rows of their own, so it is not one rank's number
        return float(parts) if own in self.found else 1.0

    def look(self, own: Number | None, sizes: Sequence[int]) -> str:
        """What to say where all ranks have divided by the same in several backwards, and it is no number of samples."""
        share = self._session.share
        if self._alike >= ALIKE_FOR or own is None or isinstance(own, Tensor) or not share.count:
            return ""
        rows = round(share.weight * share.count / self._session.world.data.parts)
        known = same(own, rows) or same(own, share.count) or own in self.found or own in accumulate(sizes, operator.mul)
        self._alike = self._alike + 1 if own == self._before and not known else 0
        self._before = own
        return NEITHER.format(own, rows, share.count) if self._alike == ALIKE_FOR else ""

    def _divides_by(self, count: int, divisors: Divisors, sizes: Sequence[int]) -> bool:
        """Whether the loss is a sum over so many. Where the script does not give its whole batch to be divided, it may also be the number of
        elements that were summed on this rank."""
        found = any(not isinstance(number, Tensor) and same(number, count) for number in divisors)
        whole = any(getattr(plugin, "divides_own_batch", False) for _, plugin in self._session.bus.plugins())
        return found and (whole or isinstance(self._session.share.indices, range) or count not in accumulate(sizes, operator.mul))
