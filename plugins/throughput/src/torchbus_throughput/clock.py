"""Measures training time, without evaluation and the time between passes.

On an accelerator the host is ahead of the device. Events in the device's stream measure its time,
without a wait: they are read one window later."""

from __future__ import annotations

import math
import threading
import time
from typing import NamedTuple

import torch
from torchbus.plugin import hookimpl

from torchbus_device import accelerators


class TimeMark(NamedTuple):
    """A moment: the host's time in seconds, and the place in the device's stream."""

    host_s: float
    event: accelerators.Event | None


class DeviceSpan(NamedTuple):
    """The time between two marks."""

    begin: TimeMark
    end: TimeMark

    @property
    def seconds(self) -> float:
        """The device's time, if it has passed both marks. Otherwise the host's."""
        begin, end = self.begin.event, self.end.event
        if begin is not None and end is not None and begin.query() and end.query():
            return begin.elapsed_time(end) / 1000.0
        return self.end.host_s - self.begin.host_s

    def wait(self) -> None:
        """Wait until the device has come so far: at the end of the session only."""
        if self.end.event is not None:
            self.end.event.synchronize()


class DeviceStopwatch:
    """A stopwatch for one device.

    ``is_late``: the time of a window is known only when the device has done its work. ``total_s``:
    all laps together, by the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_late = has_timed_events(device)
        self._since: TimeMark | None = None
        self._spans: list[DeviceSpan] = []
        self.total_s = 0.0

    def mark(self) -> TimeMark:
        """Return this moment. The host does not wait."""
        event = None
        if self.is_late and not accelerators.is_capturing(self._device):
            event = accelerators.event(self._device, timed=True)
            event.record()
        return TimeMark(time.perf_counter(), event)

    @property
    def runs(self) -> bool:
        return self._since is not None

    def start(self) -> None:
        """Resume, unless it runs."""
        if self._since is None:
            self._since = self.mark()

    def stop(self, at: TimeMark | None = None) -> None:
        """Stop now, or as of an earlier moment."""
        if self._since is not None:
            end = at if at is not None and at.host_s >= self._since.host_s else self.mark()
            self._add(DeviceSpan(self._since, end))
            self._since = None

    def lap(self) -> list[DeviceSpan]:
        """Return the time since the last lap, and continue."""
        if self._since is not None:
            now = self.mark()
            self._add(DeviceSpan(self._since, now))
            self._since = now
        spans, self._spans = self._spans, []
        return spans

    def _add(self, span: DeviceSpan) -> None:
        self._spans.append(span)
        self.total_s += span.end.host_s - span.begin.host_s


def has_timed_events(device: torch.device) -> bool:
    """Whether events of the device measure time. Those of some devices only give an order."""
    if device.type == "cpu":
        return False
    try:
        first, second = (accelerators.event(device, timed=True) for _ in range(2))
        first.record()
        second.record()
        second.synchronize()  # once, before the loop begins
        return first.elapsed_time(second) >= 0.0
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False


WATTS = "gpu_power_w"


class Power:
    """The power of this rank's GPU, by measurements that come from a monitor's thread."""

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
