"""Filters of listeners: every N-th event, once, or only on rank 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torchbus.errors import UsageError

Function = Callable[..., Any]


class Filter(NamedTuple):
    """The firings of an event that a listener gets.

    ``every``: 50 is the 50th, 100th, ... ``once``: only the first of these. ``main_only``: only on
    rank 0.
    """

    every: int = 1
    once: bool = False
    main_only: bool = False


EVERYTHING = Filter()


def checked(every: object, once: object, main_only: object) -> Filter:
    """Return the filter. Raises UsageError for other types and values."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise UsageError(f"every={every!r}: it must be a whole number from 1, as in every=50")
    for name, value in (("once", once), ("main_only", main_only)):
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r}: it must be True or False")
    return Filter(every, bool(once), bool(main_only))


class Filtered:
    """Counts events for the listeners that have filters. Checkpoints hold the counts.

    So a run that resumes calls a listener at the steps at which one without interruption does.
    """

    def __init__(self, is_main: Callable[[], bool]) -> None:
        self._is_main = is_main
        self._counts: Counter[str] = Counter()
        self.is_used = False

    def apply(self, function: Function, name: str, given: Filter) -> Function:
        """Return a function that calls this one when the filter says so.

        ``name``: of the listener, by which counts are stored.
        """
        counts, is_main, self.is_used = self._counts, self._is_main, True

        def call(*arguments: object) -> object:
            counts[name] += 1
            late = counts[name] - given.every
            is_due = late == 0 if given.once else late % given.every == 0
            if not is_due or (given.main_only and not is_main()):
                return None
            return function(*arguments)

        return call

    def state_dict(self) -> dict[str, int]:
        return dict(self._counts)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._counts.clear()
        self._counts.update(state)
