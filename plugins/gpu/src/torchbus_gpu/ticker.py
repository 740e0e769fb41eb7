"""A thread that calls a function at regular intervals."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

STOP_WITHIN_S = 5.0


class Ticker:
    """Calls ``tick`` every ``period_s`` seconds from a daemon thread.

    A forked child has no thread, and ``stop`` does nothing there.
    """

    def __init__(self, tick: Callable[[], None], period_s: float) -> None:
        self._tick = tick
        self._period_s = period_s
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchbus-gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait some seconds for it: a driver's call can hang."""
        # a child that was forked while the thread held the event's lock would wait forever
        if os.getpid() == self._pid:
            self._stopped.set()
            self._thread.join(STOP_WITHIN_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._tick()
