"""Write to a disk that may be full, slow or gone."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from queue import SimpleQueue

TOO_SLOW = "the disk is too slow"
PATIENCE_S = 0.25
STARTS_WITHIN_S, ENDS_WITHIN_S = 30.0, 10.0
WAITING_AT_MOST = 10_000
PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.EFBIG,
    errno.ETIMEDOUT,
    errno.ENODEV,
    errno.ENXIO,
    errno.ENOTCONN,
    errno.EROFS,
)
"""Errors of the disk, not of the folder's name. They may be over by the next time."""


class Call:
    """One call on the disk's thread. ``done`` is locked until it is over."""

    def __init__(self, function: Callable[[int], bool], is_record: bool) -> None:
        self.function = function
        self.is_record = is_record
        self.done = threading.Lock()
        self.done.acquire()
        self.error: Exception | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait for it. Return whether it is over."""
        return self.done.acquire(timeout=timeout_s)


class Patient:
    """Writes records on a thread of its own, one after another.

    The loop waits for each, so that the record is there even if the process dies. It waits at most
    ``PATIENCE_S``. If that is too short, it does not wait again until the thread has caught up.

    ``asked``: the number of records. ``lost``: how many of them could not be written.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._late: Call | None = None
        self.asked = self.lost = self._written = self._untold = 0
        self.first_error = ""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def begin(self, function: Callable[[int], bool]) -> None:
        """Create the folder. Raises OSError if that is impossible.

        If the disk is only full or slow, later records try again.
        """
        call = self._submitted(function, False)
        if not call.wait(STARTS_WITHIN_S):
            self._late = call
        elif call.error is not None and getattr(call.error, "errno", None) not in PASSING:
            raise call.error

    def write(self, function: Callable[[int], bool]) -> None:
        """Call ``function(lost)`` on the thread: ``lost`` records before this one were not written.

        The function returns whether it has noted that. Its errors are raised here, but no OSError.
        """
        self.asked += 1
        if self.asked - self.lost - self._written > WAITING_AT_MOST:
            self._lose(TOO_SLOW)
            return
        call = self._submitted(function, True)
        if (self._late is not None and not self._late.wait(0.0)) or not call.wait(PATIENCE_S):
            self._late = call
        else:
            self._late = None
            if call.error is not None and not isinstance(call.error, OSError):
                raise call.error

    def end(self, function: Callable[[int], bool]) -> int:
        """Wait for the thread, for some seconds at most. Return how many records are lost."""
        call = self._submitted(function, False)
        self._calls.put(None)
        if not call.wait(ENDS_WITHIN_S):
            self.first_error = self.first_error or TOO_SLOW
            return self.asked - self._written
        self._thread.join(ENDS_WITHIN_S)
        return self.lost

    def _submitted(self, function: Callable[[int], bool], is_record: bool) -> Call:
        call = Call(function, is_record)
        self._calls.put(call)
        return call

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._make(call)
            call.done.release()

    def _make(self, call: Call) -> None:
        try:
            if call.function(self._untold):
                self._untold = 0
            self._written += call.is_record
        except OSError as error:
            call.error = error
            why = error.strerror or type(error).__name__
            self.first_error = self.first_error or why
            if call.is_record:
                self._lose(why)
        except Exception as error:  # the record is to blame, not the disk: the caller gets it
            call.error = error

    def _lose(self, why: str) -> None:
        self.lost += 1
        self._untold += 1
        self.first_error = self.first_error or why
