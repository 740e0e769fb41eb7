"""Clocks that measure the time in which a rank works, without waits for other ranks."""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

import torch

from torchbus_device import accelerators

Mark = TypeVar("Mark")


class Clock(Protocol[Mark]):
    """The loop calls ``mark``, which must not wait. The monitor calls ``seconds``."""

    def mark(self) -> Mark: ...

    def seconds(self, begin: Mark, end: Mark) -> float | None:
        """Return the time between two marks, or None while it is not known."""


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin


class DeviceClock:
    """Marks in the device's own queue: a rank waits for gradients there, not on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> accelerators.Event | None:
        if accelerators.is_capturing(self._device):
            return None
        event = accelerators.event(self._device, timed=True)
        event.record()
        return event

    def seconds(
        self, begin: accelerators.Event | None, end: accelerators.Event | None
    ) -> float | None:
        if begin is None or end is None or not end.query():
            return None
        return float(begin.elapsed_time(end)) / 1000


def clock_of(device: torch.device) -> Clock[accelerators.Event | None] | Clock[float]:
    return HostClock() if device.type == "cpu" else DeviceClock(device)
