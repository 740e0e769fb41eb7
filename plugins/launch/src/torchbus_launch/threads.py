"""Threads of this process: what they call, names of native ones, and locks that a fork inherits."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, is_not, itemgetter, methodcaller
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torchbus_launch.compat import frames_of_threads

BACKWARD = "pt_autograd_"
OF_TORCH = "pt_"
SLEEP_WITHIN_S = 0.2
_one_at_a_time = threading.Lock()


class Call(NamedTuple):
    """A call of a running thread: the code, line and global variables of its frame."""

    f_code: CodeType
    f_lineno: int | None
    f_globals: dict[str, Any]


def calls_of(ident: int | None) -> list[Call]:
    """Return the running calls of a thread, the innermost first; [] for a thread that has ended."""
    read = attrgetter("f_code", "f_lineno", "f_globals")
    with _empty_collected():
        found = _at_once(map(read, _frames(ident)))
    return [Call(*one) for one in found]


def self_of(ident: int | None, level: int, read: Callable[[Any], object]) -> Any:
    """Apply ``read``, a function in C, to ``self`` in a call of a thread, and return the result.

    ``level`` is 0 for the innermost call. Returns None if the call has ended, or if its ``self``
    can't be read.
    """
    variables = map(attrgetter("f_locals"), islice(_frames(ident), level, level + 1))
    with _empty_collected():
        return next(iter(_at_once(map(read, map(methodcaller("get", "self"), variables)))), None)


def _frames(ident: int | None) -> Iterator[FrameType]:
    innermost = map(itemgetter(ident), islice(iter(frames_of_threads, None), 1))
    frames = accumulate(chain(innermost, repeat("f_back")), getattr)
    return takewhile(partial(is_not, None), frames)


def _at_once(values: Iterator[Any]) -> list[Any]:
    """Return the values, or [] for a thread that has ended.

    Everything in ``_frames`` runs in C, inside this one call, so no other thread runs meanwhile. If
    a frame were held while its thread runs, objects that the loop drops would stay alive, such as
    an iterator whose end shows all ranks that a pass is over.
    """
    try:
        return list(values)
    except (KeyError, TypeError):  # no such thread; an object without weak references
        return []


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


def native() -> Iterator[tuple[int, str, str]]:
    """Yield id, name and state ("R" if it runs) of each thread, Python's too; none without /proc.

    The main thread is the first.
    """
    with suppress(OSError):
        for number in os.listdir("/proc/self/task"):
            path = f"/proc/self/task/{number}/stat"
            with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(") ")
                yield int(number), name, rest[:1]


def has_backward_threads() -> bool:
    """Return whether a backward, on any device, has started torch's threads for GPUs.

    Once they run, backward raises in a forked process. torch offers no other way to detect them.
    """
    return any(name.startswith(BACKWARD) for _, name, _ in native())


def let_native_threads_sleep() -> None:
    """Wait until torch's native threads sleep, up to ``SLEEP_WITHIN_S``.

    A thread that has just finished a collective frees the tensors, and for that locks the
    interpreter's thread states. If the process forks at that moment, the child waits for this lock
    forever, because Python before 3.12 resets it too late.
    """
    deadline = time.monotonic() + SLEEP_WITHIN_S
    while any(name.startswith(OF_TORCH) and state == "R" for _, name, state in native()):
        if time.monotonic() > deadline:
            return
        time.sleep(0.0001)


if hasattr(os, "register_at_fork"):
    if sys.version_info < (3, 12):
        os.register_at_fork(before=let_native_threads_sleep)
    # otherwise a process forked during a read inherits a held lock, and no garbage collection
    os.register_at_fork(
        before=_one_at_a_time.acquire,
        after_in_parent=_one_at_a_time.release,
        after_in_child=_one_at_a_time.release,
    )
