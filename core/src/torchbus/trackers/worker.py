"""Makes calls one after another on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Full, Queue

CALLS_WAITING_AT_MOST = 10_000
Call = tuple["Future[object]", Callable[..., object], tuple[object, ...]]


class Worker:
    """A daemon thread: whatever a client does there, the loop goes on and the process can end."""

    def __init__(self, name: str) -> None:
        self._calls: Queue[Call | None] = Queue(CALLS_WAITING_AT_MOST)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[object] | None:
        """Hand over a call, and return its future; None if too many calls wait already."""
        future: Future[object] = Future()
        try:
            self._calls.put_nowait((future, function, arguments))
        except Full:
            return None
        return future

    def stop(self, timeout_s: float) -> None:
        """Let the thread end after the waiting calls, and wait at most ``timeout_s`` for it."""
        try:
            self._calls.put_nowait(None)
        except Full:
            return
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del call, future, function, arguments
