"""Progress of the runs: one line on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from typing import IO

EVERY_S, ELSEWHERE_S = 0.5, 10.0


class Progress:
    """Prints progress; a context manager, which completes the last line."""

    def __init__(self, steps: int | None, stream: IO[str]) -> None:
        self._steps, self._stream = steps, stream
        self._terminal = stream.isatty()
        self._name, self._begun_s, self._said_s = "", 0.0, time.monotonic()
        self._shown = False

    def show(self, name: str, steps: int) -> None:
        """Show the progress. Called often; prints rarely."""
        now = time.monotonic()
        if name != self._name:
            self._name, self._begun_s = name, now
        if now - self._said_s < (EVERY_S if self._terminal else ELSEWHERE_S):
            return
        self._said_s, self._shown = now, True
        end = "\x1b[K\r" if self._terminal else "\n"
        self._stream.write(f"{name}: {self._line(steps, now - self._begun_s)}{end}")
        self._stream.flush()

    def _line(self, steps: int, seconds: float) -> str:
        of = f" of {self._steps}" if self._steps else ""
        done = f"step {steps}{of}, {seconds:.0f} s"
        if not steps and seconds > ELSEWHERE_S:
            return f"{done} without a step yet (--steps 2 needs fewer)"
        if not steps or not self._steps or steps >= self._steps:
            return done
        return f"{done}, about {seconds / steps * (self._steps - steps):.0f} s remain"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown and self._terminal:
            self._stream.write("\x1b[K")
