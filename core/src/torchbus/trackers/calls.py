"""Counts the calls of a tracker's client, and those that failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future

from torchbus.trackers.room import NoRoom

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RARER_AFTER_FAILURES, RAREST = 5, 64
"""After so many failures in a row, only every second call is made, then every fourth, and so on."""


class Calls:
    """The counts of a tracker's calls.

    ``made``: calls handed to the tracker's thread.
    ``done``: calls that have returned or raised.
    ``failures``: calls that have raised.
    ``dropped``: calls that were never made.
    """

    def __init__(self) -> None:
        self.made = self.done = self.failures = self.dropped = 0
        self.first_error: BaseException | None = None
        self._failures_in_a_row = self._since_made = 0

    def leaves_out(self) -> bool:
        """Return whether to skip the next call, because those before it failed."""
        many = self._failures_in_a_row - RARER_AFTER_FAILURES
        left_out = many >= 0 and self._since_made + 1 < min(2 ** min(many + 1, RAREST), RAREST)
        self._since_made = self._since_made + 1 if left_out else 0
        self.dropped += left_out
        return left_out

    def begun(self, future: Future[object] | None) -> None:
        """Count a call; ``future`` is None if the thread accepts no more calls."""
        self.made += 1
        if future is None:
            self.dropped += 1
        else:
            future.add_done_callback(self._count)

    def lost(self, words: Callable[[BaseException | None], str]) -> str:
        """Say how many calls were lost, and why the first one failed; "" if none was."""
        if not (self.failures or self.dropped):
            return ""
        first = f" (the first: {words(self.first_error)})" if self.first_error else ""
        return f"{self.failures} of {self.made} calls failed{first}, {self.dropped} were not made"

    def _count(self, future: Future[object]) -> None:
        self.done += 1
        error = future.exception()
        if error is None:
            self._failures_in_a_row = 0
            return
        self.failures += 1
        self._failures_in_a_row += not isinstance(error, NoRoom)
        self.first_error = self.first_error or error


def in_one_line(error: BaseException | None) -> str:
    """Return an error without line breaks and colours; "" for one without a text."""
    if error is None or not str(error):
        return ""
    return " ".join(COLOUR.sub("", f"{type(error).__name__}: {error}").split())
