"""Seconds that count against somebody: those in which he had his chance."""

from __future__ import annotations

import time


class FairClock:
    """Does not count what this process itself has missed (stopped, frozen with its container, asleep with its laptop, without a processor), nor the
    time in which the thread whose folder in /proc is ``task`` waited for a processor. Ask it often: an answer adds ``step_s`` at most."""

    def __init__(self, step_s: float = 1.0, task: str = "") -> None:
        self._step_s = step_s
        self._task = task
        self._asked_s, self._kept_waiting_s = time.monotonic(), self._waiting_s()
        self._passed_s = 0.0

    def seconds(self) -> float:
        """Since the clock was made."""
        now, kept_waiting_s = time.monotonic(), self._waiting_s()
        passed_s = min(now - self._asked_s, self._step_s) - (kept_waiting_s - self._kept_waiting_s)
        self._passed_s += max(passed_s, 0.0)
        self._asked_s, self._kept_waiting_s = now, kept_waiting_s
        return self._passed_s

    def _waiting_s(self) -> float:
        """For a processor, in all; Linux only, elsewhere 0."""
        if not self._task:
            return 0.0
        try:
            with open(f"{self._task}/schedstat", encoding="ascii") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0
