"""The number of batches per step, by epoch."""

from __future__ import annotations

from collections.abc import Mapping

from torchbus.plugin import UsageError

WORDS = (
    "a whole number of batches, at least 1, or a dict from epoch to such a number, as in {0: 8,"
    " 4: 4}"
)


def parse(value: int | Mapping[int, int]) -> dict[int, int]:
    """Return window sizes by first epoch, from a number or a dict. Raises UsageError."""
    windows: dict[int, int] = dict(value) if isinstance(value, Mapping) else {0: value}
    for epoch, size in windows.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise UsageError(
                f"accumulate_grad_batches={value!r}: {size!r} is a {type(size).__name__}; it must"
                f" be {WORDS}"
            )
        if size < 1:
            raise UsageError(
                f"accumulate_grad_batches={value!r}: a window of {size} batches; it must be {WORDS}"
            )
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError(
                f"accumulate_grad_batches={value!r}: {epoch!r} is not an epoch; epochs count from 0"
            )
    return {0: 1} | windows


def at(schedule: Mapping[int, int], epoch: int) -> int:
    """Return the window size of an epoch.

    >>> [at({0: 8, 4: 2}, epoch) for epoch in (0, 3, 4, 9)]
    [8, 8, 2, 2]
    """
    return schedule[max(first for first in schedule if first <= epoch)]


def words(schedule: Mapping[int, int], size: int) -> str:
    """Describe the schedule for ``explain``. ``size`` is that of this epoch."""
    if len(set(schedule.values())) == 1:
        return str(size)
    return ", ".join(f"{batches} from epoch {epoch}" for epoch, batches in schedule.items())
