"""Reads what another thread is executing, safely.

Before Python 3.12, making a frame object may start a garbage collection. Its finalizers let the
other thread run while its stack is being read. The reader then reads freed memory, and the process
dies. So this module switches the garbage collector off while it reads.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torchbus._compat.cpython import frames_of_threads

_one_at_a_time = threading.Lock()
if hasattr(os, "register_at_fork"):
    # else a process that is forked during a read has the lock held, and no garbage collection
    os.register_at_fork(
        before=_one_at_a_time.acquire,
        after_in_parent=_one_at_a_time.release,
        after_in_child=_one_at_a_time.release,
    )


def of_thread(ident: int | None) -> list[FrameType]:
    """Return the frames from the innermost outwards; [] for a thread that has ended."""
    chain = []
    with _nothing_collected():
        frame = frames_of_threads().get(ident or 0)
        while frame is not None:
            chain.append(frame)
            frame = frame.f_back
    return chain


@contextmanager
def _nothing_collected() -> Iterator[None]:
    with _one_at_a_time:
        was_enabled = sys.version_info < (3, 12) and gc.isenabled()
        if was_enabled:
            gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
