"""A rank whose parent goes while it is still on its way to the session must not stay behind."""

from __future__ import annotations

import os
import threading

LOOK_EVERY_S = 0.5
_guarded = threading.Event()


def leave_with(parent_pid: int) -> None:
    """End this process if its parent does, until a guard looks after it."""

    def watch() -> None:
        while not _guarded.wait(LOOK_EVERY_S):
            if os.getppid() != parent_pid:
                os._exit(1)

    _guarded.clear()
    threading.Thread(target=watch, name="torchbus-orphan", daemon=True).start()


def guarded() -> None:
    """The session's guard has begun to look."""
    _guarded.set()
