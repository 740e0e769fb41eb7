"""Checks whether this rank waits in vain: for a stopped DataLoader worker, or for a dead disk."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from torchbus._launch.frozen import process
from torchbus._launch.watch.fair import FairClock

# Numbers of system calls: those on an open file, and those on a path, with the path's index among
# the arguments.
OPEN_FILE = {
    "x86_64": {0, 1, 5, 8, 17, 18, 19, 20, 74, 75, 77, 78, 217, 295, 296, 327, 328},
    "aarch64": {46, 61, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 286, 287},
}
PATH = {
    "x86_64": {2: 0, 4: 0, 6: 0, 21: 0, 257: 1, 262: 1, 269: 1, 332: 1, 437: 1, 439: 1},
    "aarch64": {48: 1, 56: 1, 79: 1, 291: 1, 437: 1, 439: 1},
}


class Standstill:
    """Finds what stands still in this rank.

    ``found``: what has stood still for ``freeze_timeout_s`` by the ``clock``, in words; "" if
    nothing has.
    """

    def __init__(self, clock: FairClock, freeze_timeout_s: float) -> None:
        self._clock = clock
        self._freeze_timeout_s = freeze_timeout_s
        self._since: dict[str, float] = {}
        self._workers: list[int] = []
        self.found = ""

    def look(self, workers: list[int], progress: object) -> None:
        """Check the main thread and the workers that it waits for.

        ``progress``: how far the workers have come.
        """
        now_s = self._clock.seconds()
        stands = {
            f"it {words}": f"{words} {process.switches(os.getpid())}"
            for words in [waits_for(os.getpid())]
            if words
        }
        self._workers = [pid for pid in workers if is_stopped(pid) or waits_for(pid)]
        for pid in self._workers:
            how = "is stopped by a signal" if is_stopped(pid) else waits_for(pid)
            stands[f"the worker process {pid} of its DataLoader {how}"] = (
                f"{pid} {how} {process.switches(pid)} {progress}"
            )
        self._since = {mark: self._since.get(mark, now_s) for mark in stands.values()}
        self.found = next(
            (
                words
                for words, mark in stands.items()
                if now_s - self._since[mark] > self._freeze_timeout_s
            ),
            "",
        )

    def end_workers(self) -> None:
        """End the workers: SIGTERM, SIGCONT, and after a second SIGKILL.

        A stopped process receives no signal but SIGKILL until it is continued, and multiprocessing
        waits for it. A worker that ends on its parent's SIGTERM exits without an error, so the
        loader raises none.
        """
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._signal(number)
        deadline = time.monotonic() + 1.0
        while (
            any(process.stat(pid)[:1] not in ([], ["Z"]) for pid in self._workers)
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
    return (
        process.stat(pid)[:1] == [process.STOPPED] and process.status(pid).get("TracerPid") == "0"
    )


def waits_for(pid: int) -> str:
    """Say which file the first thread of a process waits for in a system call; "" if for none.

    A terminal, a pipe, a socket or another process may take any time, so these do not count.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        name = _file(pid)
        if name and not name.startswith("/dev/"):
            return f"waits for an answer of the file {name}"
    return (
        "waits in the kernel for a device that does not answer (state D)"
        if process.stat(pid)[:1] == ["D"]
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
