"""Threads of this process: frames, names of native ones, and the locks that a fork inherits."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from torchbus_launch.compat import frames_of_threads

BACKWARD = "pt_autograd_"
OF_TORCH = "pt_"
SLEEP_WITHIN_S = 0.2
_one_at_a_time = threading.Lock()


def frames_of(ident: int | None) -> list[FrameType]:
    """Return the frames of a thread, the innermost first; [] for a thread that has ended."""
    chain = []
    with _empty_collected():
        frame = frames_of_threads().get(ident or 0)
        while frame is not None:
            chain.append(frame)
            frame = frame.f_back
    return chain


@contextmanager
def _empty_collected() -> Iterator[None]:
    with _one_at_a_time:
        was_enabled = sys.version_info < (3, 12) and gc.isenabled()
        if was_enabled:
            gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def native() -> Iterator[tuple[str, str]]:
    """Yield name and state ("R": it runs) of each thread, Python's too; none without /proc.

    The main thread is the first.
    """
    with suppress(OSError):
        for number in os.listdir("/proc/self/task"):
            path = f"/proc/self/task/{number}/stat"
            with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(") ")
                yield name, rest[:1]


def has_backward_threads() -> bool:
    """Return whether a backward, of whatever device, has started torch's thread for each GPU.

    Then backward raises in a forked process. torch has no other sign of it.
    """
    return any(name.startswith(BACKWARD) for name, _ in native())


def let_native_threads_sleep() -> None:
    """Wait until torch's native threads sleep, up to ``SLEEP_WITHIN_S``.

    A thread that has just finished a collective drops the tensors, for which it takes the
    interpreter's lock of thread states. If the process forks at that moment, the child waits for
    this lock forever: Python before 3.12 renews it too late.
    """
    deadline = time.monotonic() + SLEEP_WITHIN_S
    while any(name.startswith(OF_TORCH) and state == "R" for name, state in native()):
        if time.monotonic() > deadline:
            return
        time.sleep(0.0001)


if hasattr(os, "register_at_fork"):
    if sys.version_info < (3, 12):
        os.register_at_fork(before=let_native_threads_sleep)
    # else a process that is forked during a read has the lock held, and no garbage collection
    os.register_at_fork(
        before=_one_at_a_time.acquire,
        after_in_parent=_one_at_a_time.release,
        after_in_child=_one_at_a_time.release,
    )
