"""What another thread is executing, read safely.

Before Python 3.12 a frame object that is made may start a garbage collection. Finalizers then let the other thread go on in the middle of
reading its stack, and what is read is freed memory: the process dies. So nothing is collected meanwhile.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_one_at_a_time = threading.Lock()


def of_thread(ident: int | None) -> list[FrameType]:
    """Frames from the innermost outwards; none of a thread that has ended."""
    chain = []
    with _nothing_collected():
        frame = sys._current_frames().get(ident or 0)
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
