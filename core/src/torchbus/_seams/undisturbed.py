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
    came: list[tuple[int, FrameType | None]] = []
    found = {number: signal.getsignal(number) for number in RAISING}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    waits = True

    def hold(number: int, frame: FrameType | None) -> None:
        if waits:
            came.append((number, frame))
        else:
            handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        waits = False  # a handler may raise before all are back
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signalled, frame in came:
            handlers[signal.Signals(signalled)](signalled, frame)
