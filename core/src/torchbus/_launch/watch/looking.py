"""A thread that looks, and from which it is known when it does not come back: what it asks may be served by a process that is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchbus._launch.watch.fair import FairClock


class Looking:
    """Calls ``look()`` again and again; what that first returns other than None is ``found``."""

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
        """For a look that takes its time and knows it."""
        self._looks += 1

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def found(self) -> BaseException | None:
        """Raises the error that has ended the looking, if there was one."""
        if self._error is not None:
            raise self._error
        return self._found

    def away_s(self) -> float:
        """For how long it has been in one look; ask often."""
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
    """debugpy and PyCharm stop all threads at a breakpoint but those that are marked so: a rank that is debugged still lives."""
    thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
