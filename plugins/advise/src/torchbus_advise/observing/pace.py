"""How long a step takes, once nothing is counted any more."""

from __future__ import annotations

import statistics
import time

STEPS_AT_MOST = 40


class Pace:
    """Ends after ``seconds``, or when enough steps were timed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at_s: list[float] = []

    def step(self) -> None:
        self._at_s.append(time.perf_counter())

    @property
    def is_over(self) -> bool:
        gone = self._at_s[-1] - self._at_s[0] if self._at_s else 0.0
        return gone >= self._seconds or len(self._at_s) > STEPS_AT_MOST

    @property
    def step_s(self) -> float | None:
        gaps = [late - early for early, late in zip(self._at_s, self._at_s[1:], strict=False)]
        return statistics.median(gaps) if gaps else None
