"""Neptune's series of numbers, which accept finite values at steps that grow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

STEP_BETWEEN = 0.001


class Field(Protocol):
    """A series in a run."""

    def append(self, value: float, *, step: float) -> object: ...


class Run(Protocol):
    """What is used of a run of the ``neptune`` client."""

    def __getitem__(self, path: str) -> Field: ...

    def __setitem__(self, path: str, value: object) -> None: ...

    def stop(self, *, seconds: float) -> object: ...


class Series:
    """Appends to the series of a run.

    A value whose step is not larger than the last one of its series gets a place a thousandth of a
    step after that. The server refuses NaN and infinities, so these are counted instead.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self.not_finite: Counter[str] = Counter()

    def append(self, run: Run, path: str, value: float, step: float) -> None:
        """Append one number, unless it is not finite."""
        if not math.isfinite(value):
            self.not_finite[path] += 1
            return
        last = self._last.get(path)
        self._last[path] = at = float(step) if last is None or step > last else last + STEP_BETWEEN
        run[path].append(value, step=at)


def storable(values: Mapping[str, object]) -> dict[str, object]:
    """Plain JSON as Neptune stores it: nested dicts of strings, numbers and booleans.

    Lists and None become text.
    """
    return {
        key.replace("/", "_") or "_": (
            storable(value)
            if isinstance(value, dict)
            else value
            if isinstance(value, str | int | float)
            else str(value)
        )
        for key, value in values.items()
    }
