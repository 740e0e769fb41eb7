"""Words for the user from a thread that nothing may hold up, not even a terminal that was stopped."""

from __future__ import annotations

import contextlib
import sys
import threading


def say(text: str, within_s: float = 2.0) -> None:
    """Write to the stderr that this process began with; goes on after ``within_s`` if nobody takes the words."""

    def write() -> None:
        with contextlib.suppress(Exception):
            print(text, file=sys.__stderr__, flush=True)

    thread = threading.Thread(target=write, name="torchbus-say", daemon=True)
    thread.start()
    thread.join(within_s)
