"""Detects stalls: a stopped DataLoader worker, I/O that does not return, and idle waits."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from torchbus_launch.broadcast_log import FairClock, sockets_opened
from torchbus_launch.threads import native
from torchbus_redaction.redactor import redacted_output

STOPPED, ENDED = "T", ("", "Z", "X")


class Process(NamedTuple):
    """A process of one host.

    ``host`` identifies one boot of one machine, or one container on it. ``begun`` is the start
    time, which differs from that of a later process with the same id.
    """

    host: str
    pid: int
    begun: int

    def state(self) -> str:
        """Return the state letter of the process in /proc; "" once it has gone.

        The letter is "T" if a signal stopped it, and "t" if a debugger did.
        """
        fields = stat(self.pid)
        return fields[0] if fields and int(fields[19]) == self.begun else ""

    def is_debugged(self) -> bool:
        return status(self.pid).get("TracerPid", "0") != "0"

    def write_stderr(self, text: str) -> None:
        """Write a text to the stderr of this process, on its behalf."""
        with contextlib.suppress(OSError):
            file = os.open(
                f"/proc/{self.pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
            )
            with open(file, "wb", buffering=0) as stderr:
                stderr.write(f"{redacted_output(text)}\n".encode())

    def end(self, spare: Collection[int]) -> None:
        """Send SIGKILL to this process and its descendants, except ``spare`` and theirs."""
        if self.state() in ENDED:
            return
        for pid in [self.pid, *_descendants(self.pid, {*spare, os.getpid()})]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def this() -> Process:
    """Return this process; its host is "" if there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            host = f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
        return Process(host, os.getpid(), int(stat(os.getpid())[19]))
    except (OSError, IndexError):
        return Process("", os.getpid(), 0)


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; [] if there is no such process."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/task/{pid}/stat", encoding="utf-8", errors="replace") as file,
    ):
        return file.read().rpartition(")")[2].split()
    return []


def status(pid: int) -> dict[str, str]:
    """Return /proc/PID/status of the first thread as a dictionary."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/task/{pid}/status", encoding="utf-8", errors="replace") as file,
    ):
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {}


def switches(pid: int) -> str:
    """Return the counts of voluntary and other context switches of a process's first thread.

    While they stay the same, that thread has done nothing.
    """
    found = status(pid)
    return f"{found.get('voluntary_ctxt_switches')} {found.get('nonvoluntary_ctxt_switches')}"


def _descendants(pid: int, spare: set[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat(int(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for parent in found:
        found += [child for child in children.get(parent, ()) if child not in spare]
    return found[1:]


# The numbers of system calls on an open file, and of those on a path, with the index of the path
# among the arguments.
OPEN_FILE = {
    "x86_64": {0, 1, 5, 8, 17, 18, 19, 20, 74, 75, 77, 78, 217, 295, 296, 327, 328},
    "aarch64": {46, 61, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 286, 287},
}
PATH = {
    "x86_64": {2: 0, 4: 0, 6: 0, 21: 0, 257: 1, 262: 1, 269: 1, 332: 1, 437: 1, 439: 1},
    "aarch64": {48: 1, 56: 1, 79: 1, 291: 1, 437: 1, 439: 1},
}


class StallDetector:
    """Detects stalls of this rank.

    ``found`` describes what has been stalled for ``freeze_timeout_s`` of the ``clock``, or is "".
    """

    def __init__(self, clock: FairClock, freeze_timeout_s: float) -> None:
        self._clock = clock
        self._freeze_timeout_s = freeze_timeout_s
        self._since: dict[str, float] = {}
        self._workers: list[int] = []
        self.found = ""

    def look(self, workers: list[int], progress: object) -> None:
        """Check the main thread and the workers that it waits for.

        ``progress`` says how far the workers have come.
        """
        now_s = self._clock.seconds()
        stands = {
            f"it {state}": f"{state} {switches(os.getpid())}"
            for state in [waits_for(os.getpid())]
            if state
        }
        self._workers = [pid for pid in workers if is_stopped(pid) or waits_for(pid)]
        for pid in self._workers:
            how = "is stopped by a signal" if is_stopped(pid) else waits_for(pid)
            stands[f"the worker process {pid} of its DataLoader {how}"] = (
                f"{pid} {how} {switches(pid)} {progress}"
            )
        self._since = {mark: self._since.get(mark, now_s) for mark in stands.values()}
        self.found = next(
            (
                state
                for state, mark in stands.items()
                if now_s - self._since[mark] > self._freeze_timeout_s
            ),
            "",
        )

    def end_workers(self) -> None:
        """End the stalled workers: send SIGTERM and SIGCONT, and after a second SIGKILL.

        Until a stopped process is continued, it receives only SIGKILL, and multiprocessing waits
        for it. A worker that ends on its parent's SIGTERM exits without an error, so the loader
        raises none.
        """
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(number)
        deadline = time.monotonic() + 1.0
        while (
            any(stat(pid)[:1] not in ([], ["Z"]) for pid in self._workers)
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Return whether a signal, not a debugger, has stopped the process."""
    return stat(pid)[:1] == [STOPPED] and status(pid).get("TracerPid") == "0"


def waits_for(pid: int) -> str:
    """Return the file that the first thread of a process waits for in a system call, or "".

    Waiting for a terminal, a pipe, a socket or another process does not count, because these may
    take any time.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        name = _file(pid)
        if name and not name.startswith("/dev/"):
            return f"waits for an answer of the file {name}"
    return (
        "waits in the kernel for a device that does not answer (state D)"
        if stat(pid)[:1] == ["D"]
        else ""
    )


def _file(pid: int) -> str:
    with open(f"/proc/{pid}/task/{pid}/syscall", encoding="ascii") as file:
        call = file.read().split()
    if call[0] == "running":
        return ""
    number, arguments, machine = (
        int(call[0]),
        [int(word, 16) for word in call[1:7]],
        os.uname().machine,
    )
    if number in PATH.get(machine, {}):
        return _text(pid, arguments[PATH[machine][number]])
    if number in OPEN_FILE.get(machine, ()) and arguments[0] > 2:
        name = os.readlink(f"/proc/{pid}/fd/{arguments[0]}")
        return name if name.startswith("/") else ""
    return ""


def _text(pid: int, address: int) -> str:
    """Read a path from the memory of the process."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(256).partition(b"\0")[0].decode(errors="replace")


if sys.platform != "win32":
    import fcntl
    import termios


STORE = "pt_tcpstore"  # torch's name for the threads that serve the store


def mark(store_port: int) -> str:
    """Return a mark that stays the same while the main thread sleeps.

    It is "" if a native thread works or waits for a processor, or if a socket holds unread data.
    The store's threads and connections, and Python's other threads, don't count: they are busy
    while a rank waits, too.
    """
    if any(state != "S" for state in _native_threads()) or any(
        _carries_something(socket, store_port) for socket in sockets_opened()
    ):
        return ""
    return switches(os.getpid())


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
    for number, name, state in native():
        if number not in others and not name.startswith(STORE):
            yield state


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
