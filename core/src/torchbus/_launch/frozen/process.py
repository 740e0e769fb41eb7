"""Processes as /proc shows them; outside Linux none is visible."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from typing import NamedTuple

STOPPED, ENDED = "T", ("", "Z", "X")


class Process(NamedTuple):
    """A process of one host.

    ``host``: identifies one boot of one machine, or one container on it.
    ``begun``: its start time, which differs from that of a later process with the same id.
    """

    host: str
    pid: int
    begun: int

    def state(self) -> str:
        """Return its state letter in /proc; "" once it has gone.

        "T": a signal stopped it. "t": a debugger stopped it.
        """
        fields = stat(self.pid)
        return fields[0] if fields and int(fields[19]) == self.begun else ""

    def is_debugged(self) -> bool:
        return status(self.pid).get("TracerPid", "0") != "0"

    def tell(self, text: str) -> None:
        """Write to its stderr on its behalf."""
        with contextlib.suppress(OSError):
            file = os.open(
                f"/proc/{self.pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
            )
            with open(file, "wb", buffering=0) as stderr:
                stderr.write(f"{text}\n".encode())

    def end(self, spare: Collection[int]) -> None:
        """Send SIGKILL to it and its descendants.

        It spares the processes ``spare`` and their descendants.
        """
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


def stat(pid: int, thread: int | None = None) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; [] if there is no such process."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/task/{thread or pid}/stat", encoding="utf-8", errors="replace") as file,
    ):
        return file.read().rpartition(")")[2].split()
    return []


def name(thread: int) -> str:
    """Return the name of a thread of this process."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file,
    ):
        return file.read().strip()
    return ""


def status(pid: int) -> dict[str, str]:
    """Return /proc/PID/status of the first thread as a dictionary."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/task/{pid}/status", encoding="utf-8", errors="replace") as file,
    ):
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {}


def switches(pid: int) -> str:
    """Return the counts of context switches of its first thread, voluntary and not.

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
