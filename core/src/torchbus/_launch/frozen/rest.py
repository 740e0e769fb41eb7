"""Checks whether this process has nothing to do: evidence that what it waits for will not come.

A long wait is no evidence, because on a busy machine everything takes long.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

from torchbus._launch.frozen import process

if sys.platform != "win32":
    import fcntl
    import termios

STORE = "pt_tcpstore"  # torch's name for the threads that serve the store


def mark(store_port: int) -> str:
    """Return a mark that stays the same while the main thread sleeps.

    "" if a native thread works or waits for a processor, or if a socket holds unread data. The
    store's threads, its connections, and Python's threads do not count: others ask them constantly.
    """
    if any(state != "S" for state in _native_threads()) or any(
        _carries_something(socket, store_port) for socket in _sockets()
    ):
        return ""
    return process.switches(os.getpid())


def _native_threads() -> Iterator[str]:
    """Yield the states of the main thread and of all threads that Python does not know.

    Without /proc, yield one unknown state.
    """
    others = {
        thread.native_id
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
    }
    if not os.path.isdir("/proc/self/task"):
        yield "?"
        return
    for number in {int(name) for name in os.listdir("/proc/self/task")} - others:
        fields = process.stat(os.getpid(), number)
        if fields and not process.name(number).startswith(STORE):
            yield fields[0]


def _sockets() -> Iterator[int]:
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                yield int(entry)


def _carries_something(descriptor: int, store_port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        ends = (copy.getsockname(), copy.getpeername())
        if not any(isinstance(end, tuple) and end[1] == store_port for end in ends):
            return any(
                _bytes(descriptor, question) for question in (termios.FIONREAD, termios.TIOCOUTQ)
            )
    return False


def _bytes(descriptor: int, question: int) -> int:
    """Return the number of bytes that wait to be read, or to be received by the other side."""
    answer = array.array("i", [0])
    fcntl.ioctl(descriptor, question, answer)
    return answer[0]
