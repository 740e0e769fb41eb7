"""Prints for threads that must not block, not even on a stopped terminal."""

from __future__ import annotations

import contextlib
import sys
import threading


def say(text: str, within_s: float = 2.0) -> None:
    """Write to the stderr that this process began with.

    Returns after ``within_s`` even if the text is not written yet.
    """

    def write() -> None:
        with contextlib.suppress(Exception):
            print(text, file=sys.__stderr__, flush=True)

    thread = threading.Thread(target=write, name="torchbus-say", daemon=True)
    thread.start()
    thread.join(within_s)
