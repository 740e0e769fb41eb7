"""Ends a rank whose parent process ends before the rank has reached the session."""

from __future__ import annotations

import os
import threading

LOOK_EVERY_S = 0.5
_guarded = threading.Event()


def leave_with(parent_pid: int) -> None:
    """Until a guard watches this process, end it if its parent ends."""

    def watch() -> None:
        while not _guarded.wait(LOOK_EVERY_S):
            if os.getppid() != parent_pid:
                os._exit(1)

    _guarded.clear()
    threading.Thread(target=watch, name="torchbus-orphan", daemon=True).start()


def guarded() -> None:
    """Record that the session's guard now watches this process."""
    _guarded.set()
