"""A number that all ranks divide by: a constant, one that the script has normalised over ranks,
each rank's number of samples, or that of all?
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from torch import Tensor

from torchbus._loss.graph.term import Divisors, Number, same
from torchbus._loss.messages import NEITHER
from torchbus._session.context import Context

ALIKE_FOR = 3


class ConstantDivisors:
    """What such numbers turned out to be, alike on all ranks.

    ``own``: the number. ``sizes``: the shape of what was summed.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._of_all: set[float] = set()
        self._of_each: set[float] = set()
        self._alike = 0
        self._before = 0.0

    def state_dict(self) -> dict[str, object]:
        return {"constants": sorted(self._of_all), "constants of each": sorted(self._of_each)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._of_all, self._of_each = (
            set(state["constants"]),
            set(state.get("constants of each", ())),
        )

    def target(self, own: Number | None, divisors: Divisors, sizes: tuple[int, ...]) -> float:
        """Return the mean weight that ranks must have.

        It is 1 for a loss that is normalised over ranks already. It is the number of parts if all
        ranks divide by the number of samples of all.
        """
        share, parts = self._session.share, self._session.world.data.parts
        if own is None or isinstance(own, Tensor) or not share.count:
            return 1.0
        if (
            share.count >= 2 * parts
            and own not in self._of_each
            and self._divides_by(share.count, divisors, sizes)
        ):
            # all ranks have rows of their own, so it is not one rank's number
            self._of_all.add(own)
        return float(parts) if own in self._of_all else 1.0

    def look(self, own: Number | None, divisors: Divisors, sizes: tuple[int, ...]) -> str:
        """Look at a backward in which all ranks divide by ``own``.

        Returns a warning if they always divide by it and it is no number of samples.
        """
        share, parts = self._session.share, self._session.world.data.parts
        if own is None or isinstance(own, Tensor) or not share.count:
            return ""
        if parts > 1 and same(own * parts, share.count):
            self._of_each.add(own)  # at the ragged end all ranks together may have as many
        rows = round(share.weight * share.count / parts)
        counts = (rows, share.count, *self._of_all, *accumulate(sizes, operator.mul))
        # a loss may also be multiplied by constants
        known = any(
            not isinstance(number, Tensor) and same(number, count)
            for number in (own, *divisors)
            for count in counts
        )
        if self._alike < ALIKE_FOR:
            self._alike = self._alike + 1 if own == self._before and not known else 0
            self._before = own
            return NEITHER.format(own, rows, share.count) if self._alike == ALIKE_FOR else ""
        return ""

    def _divides_by(self, count: int, divisors: Divisors, sizes: tuple[int, ...]) -> bool:
        """Whether the loss is a sum divided by this count.

        If the script does not divide its own batch, the count may also be the number of elements
        that were summed on this rank.
        """
        found = any(not isinstance(number, Tensor) and same(number, count) for number in divisors)
        whole = any(
            getattr(plugin, "divides_own_batch", False) for _, plugin in self._session.bus.plugins()
        )
        return found and (
            whole
            or isinstance(self._session.share.indices, range)
            or count not in accumulate(sizes, operator.mul)
        )


class CommonDivisor:
    """Judges anew in each backward, alike on all ranks, by what all of them know.

    A number of samples does not count, though equal shares make it equal. Nor does a count of each
    rank's own (of a mask) that is equal by chance: earlier ones differed.

    ``is_found``: there is one so far. ``has_counted_repeated``: in the last backward, ranks without
    samples repeated a batch, and the script has taken its number from all ranks.
    """

    def __init__(self) -> None:
        self._always_alike = True
        self._is_no_count = False
        self._first: float | None = None
        self._varies = False
        self.has_counted_repeated = False

    def state_dict(self) -> list[object]:
        return [self._always_alike, self._is_no_count, self._first, self._varies]

    def load_state_dict(self, state: list[Any]) -> None:
        self._always_alike, self._is_no_count, self._first, self._varies = state

    @property
    def is_found(self) -> bool:
        return self._always_alike and self._is_no_count

    def expect(self, number: Number | None, samples: int, parts: int) -> bool:
        """What ``judge`` would find, should all ranks divide by ``number``.

        On a GPU the host does not wait to know whether they do. A number that is on the GPU itself
        is judged by earlier ones.
        """
        if number is None or isinstance(number, Tensor):
            return self.is_found
        is_count = bool(samples) and same(float(number), samples / _sharers(samples, parts))
        return self._always_alike and (self._is_no_count or not is_count)

    def judge(self, alike: bool, number: Number | None, samples: int, parts: int) -> bool:
        """Whether all ranks divide by one number that counts.

        ``alike``: all ranks divide by ``number`` now. ``samples``: those of all ranks, 0 if nobody
        has counted.
        """
        self.has_counted_repeated = False
        some_repeat = bool(samples) and samples < 2 * parts
        if not alike or number is None:
            self._always_alike &= some_repeat
            return False
        divisor = float(number)
        self._varies |= self._first is not None and not same(divisor, self._first)
        self._first = divisor if self._first is None else self._first
        is_count = bool(samples) and same(divisor, samples / _sharers(samples, parts))
        if some_repeat:
            found = self._always_alike and (self._is_no_count or not is_count)
            self.has_counted_repeated = found and self._varies
            return found
        self._is_no_count |= not is_count
        return self.is_found


def _sharers(samples: int, parts: int) -> int:
    """Return how many ranks have samples, each at least two if possible."""
    return min(parts, max(1, samples // 2))
