"""Whether all ranks divide their losses by one number, which the script has normalised over them or which is a constant."""

from __future__ import annotations

from typing import Any

from torchbus._loss.graph import Number, same


class CommonDivisor:
    """Judged anew in each backward, alike on all ranks, by what all of them know. A number of samples is no such number, though equal shares
    make it equal. Nor is a count of each rank's own (of a mask) that is equal by chance: others before it were not.

    ``is_found``: so far. ``has_counted_repeated``: in the last backward ranks without samples repeated a batch, and the script has taken its
    number from all ranks.
    """

    def __init__(self) -> None:
        self._always_alike = True
        self._is_no_count = False
        self._first: float | None = None
        self._varies = False
        self.has_counted_repeated = False

    def state_dict(self) -> list[Any]:
        return [self._always_alike, self._is_no_count, self._first, self._varies]

    def load_state_dict(self, state: list[Any]) -> None:
        self._always_alike, self._is_no_count, self._first, self._varies = state

    @property
    def is_found(self) -> bool:
        return self._always_alike and self._is_no_count

    def judge(self, alike: bool, number: Number | None, samples: int, parts: int) -> bool:
        """``alike``: all ranks divide by ``number`` now. ``samples``: of all ranks, 0 where nobody has counted."""
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
    """How many ranks have samples, each at least two where possible."""
    return min(parts, max(1, samples // 2))
