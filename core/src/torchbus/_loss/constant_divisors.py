"""A number that all ranks divide their losses by: is it each rank's number of samples, that of all ranks, or neither?"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchbus._loss.graph import Divisors, Number, same
from torchbus._loss.messages import NEITHER

if TYPE_CHECKING:
    from torchbus._session.context import Context

ALIKE_FOR = 3


class ConstantDivisors:
    """What such numbers were found to be, alike on all ranks. ``own``: the number; ``sizes``: the shape of what was summed."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._of_all: set[float] = set()
        self._of_each: set[float] = set()
        self._alike = 0
        self._before = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"constants": sorted(self._of_all), "constants of each": sorted(self._of_each)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._of_all, self._of_each = set(state["constants"]), set(state.get("constants of each", ()))

    def target(self, own: Number | None, divisors: Divisors, sizes: tuple[int, ...]) -> float:
        """The mean weight that ranks are to have: 1 for a loss that is normalised over ranks already; as many as there are parts for one that
        all of them divide by the number of samples of all."""
        share, parts = self._session.share, self._session.world.data.parts
        if own is None or isinstance(own, Tensor) or not share.count:
            return 1.0
        if share.count >= 2 * parts and own not in self._of_each and self._divides_by(share.count, divisors, sizes):
            self._of_all.add(own)  # all ranks have rows of their own, so it is not one rank's number
        return float(parts) if own in self._of_all else 1.0

    def look(self, own: Number | None, sizes: tuple[int, ...]) -> str:
        """All ranks divide by ``own`` in this backward. Returns what to say of one that they divide by all the time, and that is no number of
        samples."""
        share, parts = self._session.share, self._session.world.data.parts
        if own is None or isinstance(own, Tensor) or not share.count:
            return ""
        if parts > 1 and same(own * parts, share.count):
            self._of_each.add(own)  # at the ragged end all ranks together may have as many
        rows = round(share.weight * share.count / parts)
        known = same(own, rows) or same(own, share.count) or own in self._of_all or own in accumulate(sizes, operator.mul)
        if self._alike < ALIKE_FOR:
            self._alike = self._alike + 1 if own == self._before and not known else 0
            self._before = own
            return NEITHER.format(own, rows, share.count) if self._alike == ALIKE_FOR else ""
        return ""

    def _divides_by(self, count: int, divisors: Divisors, sizes: tuple[int, ...]) -> bool:
        """Whether the loss is a sum over so many. Where the script does not give its whole batch to be divided, it may also be the number of
        elements that were summed on this rank."""
        found = any(not isinstance(number, Tensor) and same(number, count) for number in divisors)
        whole = any(getattr(plugin, "divides_own_batch", False) for _, plugin in self._session.bus.plugins())
        return found and (whole or isinstance(self._session.share.indices, range) or count not in accumulate(sizes, operator.mul))
