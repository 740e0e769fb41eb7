"""Starts the monitor, its diagnoses and the lint of the loop on each rank."""

from __future__ import annotations

import math

from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_gpu import events
from torchbus_gpu import lint as lints
from torchbus_gpu.monitor import Monitor

SHORTEST_INTERVAL_S = 0.05


class Gpu:
    """Measures this rank's GPU, process and host from a thread, and warns once of each problem.

    Args:
        gpu_monitor: measure GPU, process and host of each rank. False measures nothing.
        interval_s: seconds between two measurements, at least 0.05.
        lint: also look for lines of the loop that slow it down, and warn of each once.

    Each rank sends its measurements as ``system_metrics``. They replace nothing in torch. With
    ``lint=True``, the methods that it observes are replaced until the session ends.

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("monitor",)
    declares_events = events
    tried_with = ({"gpu_monitor": True, "lint": True},)

    def __init__(
        self, *, gpu_monitor: bool = True, interval_s: float = 2.0, lint: bool = False
    ) -> None:
        expect("gpu_monitor", gpu_monitor, bool, "True or False")
        expect("interval_s", interval_s, (int, float), "a number of seconds")
        expect("lint", lint, bool, "True or False")
        if not SHORTEST_INTERVAL_S <= interval_s < math.inf:
            raise UsageError(f"interval_s={interval_s}: it must be {SHORTEST_INTERVAL_S:g} or more")
        if lint and not gpu_monitor:
            raise UsageError(
                "lint=True needs what the monitor measures: leave gpu_monitor=False out"
            )
        self._active = gpu_monitor
        self._interval_s = float(interval_s)
        self._lint = lint
        self._monitor: Monitor | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        if not self._active:
            return
        self._monitor = Monitor(session, self._interval_s)
        for name, listener in self._monitor.listeners():
            session.bus.register(listener, f"gpu.{name}")
        if self._lint:
            for name, listener in lints.listeners(session, self._monitor):
                session.bus.register(listener, f"gpu.lint.{name}")
        self._monitor.start()
        session.on_close.callback(self._monitor.stop)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        if self._monitor is None:
            return None
        found = {
            "monitor": [
                self._monitor.describe(),
                *(["lint: says once what slows the loop down"] if self._lint else []),
            ]
        }
        return found | (
            {"notes": self._monitor.notices.warned} if self._monitor.notices.warned else {}
        )
