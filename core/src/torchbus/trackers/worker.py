"""Calls that are made one after another on a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Full, Queue
from typing import Any

CALLS_WAITING_AT_MOST = 10_000


class Worker:
    """A daemon thread: whatever a client does in it, the loop goes on, and the process can end."""

    def __init__(self, name: str) -> None:
        self._calls: Queue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = Queue(CALLS_WAITING_AT_MOST)
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Have a call made; None if too many are waiting already."""
        future: Future[Any] = Future()
        try:
            self._calls.put_nowait((future, function, arguments))
        except Full:
            return None
        return future

    def stop(self, timeout_s: float) -> None:
        """Let the thread end after the calls that wait, and wait for it so long at most."""
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
