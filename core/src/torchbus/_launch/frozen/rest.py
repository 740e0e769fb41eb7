"""Whether this process has nothing to do: evidence that what it waits for is not on its way. That it has waited long is none, for on a busy
machine everything takes long."""

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

STORE = "pt_tcpstore"  # how torch calls the threads that serve the store


def mark(store_port: int) -> str:
    """Stays the same as long as the main thread sleeps on; "" where some thread of native code has work, or waits for a processor, or where
    something that was sent has not been read. The store, and threads of Python, are asked by others all the time, and do not count."""
    if any(state != "S" for state in _native_threads()) or any(_carries_something(socket, store_port) for socket in _sockets()):
        return ""
    return process.switches(os.getpid())


def _native_threads() -> Iterator[str]:
    """The states of the main thread and of those that Python does not know; where there is no /proc, one that is not known."""
    others = {thread.native_id for thread in threading.enumerate() if thread is not threading.main_thread()}
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
            return any(_bytes(descriptor, question) for question in (termios.FIONREAD, termios.TIOCOUTQ))
    return False


def _bytes(descriptor: int, question: int) -> int:
    """That wait to be read, or to be taken by the other side."""
    answer = array.array("i", [0])
    fcntl.ioctl(descriptor, question, answer)
    return answer[0]
