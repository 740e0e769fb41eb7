"""Locks of the operating system on open files, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref

if sys.platform != "win32":
    import fcntl


def try_lock(descriptor: int) -> bool | None:
    """Try to lock an open file, and return whether this process holds the lock.

    None if the file system has no locks (Lustre without ``-o flock``).
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class OpenHere:
    """A descriptor that forked processes close.

    Otherwise they would hold its lock as long as they live.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close = weakref.WeakMethod(self.close)
        os.register_at_fork(after_in_child=lambda: (alive := close()) and alive())

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
