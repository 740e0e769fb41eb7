"""Writing to a disk that may be full, slow or gone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from typing import Any

from torchbus.trackers.worker import Worker

TOO_SLOW = "the disk is too slow"
PATIENCE_S = 0.25
STARTS_WITHIN_S, ENDS_WITHIN_S = 30.0, 10.0
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EFBIG, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.EROFS)
"""Of a disk, and not of the folder that somebody has named: they may be over by the next time."""


class Patient:
    """Has records written on a thread of its own, one after another. The loop waits for each, so that it is there whatever becomes of the
    process; but no longer than ``PATIENCE_S``, and then not again until all that waits has been written.

    ``asked`` records came, ``lost`` of them could not be written.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)
        self._last: Future[Any] | None = None
        self._is_behind = False
        self.asked = self.lost = self._written = self._untold = 0
        self.first_error = ""

    def begin(self, function: Callable[[], None]) -> None:
        """Make the folder. Raises the OSError of one that can't be made; a disk that is full or slow is waited for later."""
        future = self._worker.submit(function)
        assert future is not None
        try:
            future.result(STARTS_WITHIN_S)
        except TimeoutError:
            self._is_behind, self._last = True, future
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.first_error = _words(error)

    def write(self, function: Callable[[int], bool]) -> None:
        """Have ``function(lost)`` called; ``lost`` records before this one were not written. It returns whether it has told so."""
        self.asked += 1
        behind = self._is_behind and self._last is not None and not self._last.done()
        future = self._worker.submit(self._attempt, function)
        if future is None:
            self._lose(TOO_SLOW)
            return
        self._last, self._is_behind = future, behind
        if not behind:
            try:
                future.result(PATIENCE_S)
            except TimeoutError:
                self._is_behind = True

    def end(self, function: Callable[[], None]) -> int:
        """Wait for what is still to be written, boundedly; returns how many records are lost in all."""
        future = self._worker.submit(function)
        self._worker.stop(ENDS_WITHIN_S)
        if future is None or not future.done():
            self.first_error = self.first_error or TOO_SLOW
        return self.asked - self._written

    def _attempt(self, function: Callable[[int], bool]) -> None:
        """On the thread."""
        try:
            if function(self._untold):
                self._untold = 0
            self._written += 1
        except OSError as error:
            self._lose(_words(error))

    def _lose(self, why: str) -> None:
        self.lost += 1
        self._untold += 1
        self.first_error = self.first_error or why


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__
