"""What Neptune's series of numbers accept: finite values, at steps that grow."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

STEP_BETWEEN = 0.001


class Series:
    """Appends to the series of a run. A value whose step is not larger than the last one of its series is put a thousandth of
    a step after it; NaN and infinities, which the server refuses, are counted."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self.not_finite: Counter[str] = Counter()

    def append(self, run: Any, path: str, value: float, step: float) -> None:
        """Append one number, unless it is not finite."""
        if not math.isfinite(value):
            self.not_finite[path] += 1
            return
        last = self._last.get(path)
        self._last[path] = at = float(step) if last is None or step > last else last + STEP_BETWEEN
        run[path].append(value, step=at)


def storable(values: dict[str, Any]) -> dict[str, Any]:
    """Plain JSON as Neptune stores it: nested dicts of strings, numbers and booleans; lists and None are text."""
    return {
        key.replace("/", "_") or "_": storable(value) if isinstance(value, dict) else value if isinstance(value, str | int | float) else str(value)
        for key, value in values.items()
    }
