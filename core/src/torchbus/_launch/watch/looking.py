"""A thread that looks again and again; its owner can tell if a look does not return.

A look asks the store, and the process that serves the store may be stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchbus._launch.watch.fair import FairClock


class Looking:
    """Calls ``look()`` again and again; ``found()`` is its first result that is not None."""

    def __init__(self, look: Callable[[], BaseException | None], pause_s: float) -> None:
        self._look = look
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._clock = FairClock()
        self._looks = self._looks_seen = 0
        self._came_back_s = 0.0
        self._thread = threading.Thread(target=self._run, name="torchbus-looking", daemon=True)
        self._error: BaseException | None = None
        self._found: BaseException | None = None

    def start(self) -> None:
        leave_to_no_debugger(self._thread)
        self._thread.start()

    def still_there(self) -> None:
        """Show that the look goes on; for a look that expects to take long."""
        self._looks += 1

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def found(self) -> BaseException | None:
        """Return the first result that is not None, or raise the error that ended the thread."""
        if self._error is not None:
            raise self._error
        return self._found

    def away_s(self) -> float:
        """Return the seconds since the current look began; call it often."""
        now_s = self._clock.seconds()
        if self._looks != self._looks_seen or not self._thread.is_alive():
            self._looks_seen, self._came_back_s = self._looks, now_s
        return now_s - self._came_back_s

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                found = self._look()
                self._found = self._found or found
                self.still_there()
        except BaseException as error:
            self._error = error


def leave_to_no_debugger(thread: threading.Thread) -> None:
    """Mark a thread that debuggers must not stop.

    At a breakpoint, debugpy and PyCharm stop all threads without this mark. The guard of a
    debugged rank must still show that the rank lives.
    """
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
