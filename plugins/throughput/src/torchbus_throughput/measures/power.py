"""The energy of a window, from the power that torchbus-gpu measures."""

from __future__ import annotations

import math
import threading

from torchbus.plugin import hookimpl

WATTS = "gpu_power_w"


class Power:
    """Listens to the measurements of this rank's GPU, which come from a monitor's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest = math.nan
        self._sum, self._count = 0.0, 0

    @hookimpl(optionalhook=True)
    def system_metrics(self, metrics: dict[str, float]) -> None:
        if WATTS in metrics:
            with self._lock:
                self._latest = metrics[WATTS]
                self._sum += metrics[WATTS]
                self._count += 1

    def lap(self) -> float:
        """Return the mean power since the last lap, in watts.

        It is the latest known one if nothing was measured since, and NaN if nothing ever was.
        """
        with self._lock:
            mean = self._sum / self._count if self._count else self._latest
            self._sum, self._count = 0.0, 0
        return mean
