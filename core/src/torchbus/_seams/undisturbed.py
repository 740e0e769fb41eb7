"""Changes to torch that no signal leaves half made."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Call the handlers of signals that come inside after the block: they may raise anywhere.

    Only the main thread handles signals. Elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = _Hold()
    try:
        for number in hold.handlers:
            signal.signal(number, hold)
        yield
    finally:
        hold.release()


class _Hold:
    """A handler that keeps signals for those in whose place it is."""

    def __init__(self) -> None:
        found = {number: signal.getsignal(number) for number in RAISING}
        self.handlers = {number: own for number, own in found.items() if callable(own)}
        self._came: list[tuple[int, FrameType | None]] = []
        self._keeps = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._keeps:
            self._came.append((number, frame))
        else:
            self.handlers[signal.Signals(number)](number, frame)

    def release(self) -> None:
        self._keeps = False  # a handler may raise before all are back
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for came, frame in self._came:
            self(came, frame)
