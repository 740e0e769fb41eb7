"""A clock that counts only the seconds in which a process or thread could run."""

from __future__ import annotations

import time


class FairClock:
    """Counts the seconds in which this process could run.

    It skips the time for which the process was stopped, frozen with its container, asleep with its
    laptop, or without a processor. It also skips the time for which a thread waited for a
    processor; ``task`` is that thread's folder in /proc. Call ``seconds()`` often: one call adds at
    most ``step_s``.
    """

    def __init__(self, step_s: float = 1.0, task: str = "") -> None:
        self._step_s = step_s
        self._task = task
        self._asked_s, self._kept_waiting_s = time.monotonic(), self._waiting_s()
        self._passed_s = 0.0

    def seconds(self) -> float:
        """Return the seconds counted since the clock was made."""
        now, kept_waiting_s = time.monotonic(), self._waiting_s()
        passed_s = min(now - self._asked_s, self._step_s) - (kept_waiting_s - self._kept_waiting_s)
        self._passed_s += max(passed_s, 0.0)
        self._asked_s, self._kept_waiting_s = now, kept_waiting_s
        return self._passed_s

    def _waiting_s(self) -> float:
        """Return how long the thread has waited for a processor in all; 0 outside Linux."""
        if not self._task:
            return 0.0
        try:
            with open(f"{self._task}/schedstat", encoding="ascii") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0
