"""Clocks that know when a rank waits for others and when it works."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """``mark`` is called by the loop and must not wait; ``seconds`` by the monitor."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Time between two marks, None while it is not known yet."""


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin


class GpuClock:
    """Marks in the GPU's own queue: there, and not on the host, a rank waits for the gradients of the others."""

    def mark(self) -> torch.cuda.Event | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, begin: torch.cuda.Event | None, end: torch.cuda.Event | None) -> float | None:
        if begin is None or end is None or not end.query():  # type: ignore[no-untyped-call]
            return None
        return float(begin.elapsed_time(end)) / 1000  # type: ignore[no-untyped-call]


def clock_of(device: torch.device) -> Clock:
    return GpuClock() if device.type == "cuda" else HostClock()
