"""The time in which a rank works by itself, between two backwards. In backward, ranks wait."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

import torch
from torchbus.plugin import hookimpl

from torchbus_gpu.diagnoses.clocks import clock_of

STEPS_PER_INTERVAL = 8


class OwnWork:
    """Times some steps of each interval.

    The rank's own work (loader, forward, optimizer) lasts from the end of a backward to the begin
    of the next one. A step lasts to the end of the next one.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = clock_of(device)
        self._wanted = STEPS_PER_INTERVAL
        self._end: Any = None
        self._begin: Any = None
        self._steps: deque[tuple[Any, Any, Any]] = deque(maxlen=STEPS_PER_INTERVAL)
        self.own_s = self.step_s = 0.0

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        if self._end is not None:
            self._begin = self._clock.mark()

    @hookimpl(trylast=True)
    def after_backward(self) -> None:
        if self._wanted <= 0:
            self._end = self._begin = None
            return
        now = self._clock.mark()
        if self._begin is not None:
            self._steps.append((self._end, self._begin, now))
            self._wanted -= 1
        self._end, self._begin = now, None

    def read(self) -> dict[str, float]:
        """Return median seconds of own work and of a step, of the steps since the last reading."""
        pairs = [
            (self._clock.seconds(start, begin), self._clock.seconds(start, end))
            for start, begin, end in list(self._steps)
        ]
        known = [(own, step) for own, step in pairs if own is not None and step is not None]
        if known:
            self._steps.clear()
            self.own_s, self.step_s = (median(column) for column in zip(*known, strict=True))
        self._wanted = STEPS_PER_INTERVAL
        return {"own_work_s": self.own_s, "step_s": self.step_s} if known else {}
