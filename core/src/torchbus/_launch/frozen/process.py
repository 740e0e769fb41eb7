"""Processes as /proc shows them (Linux; elsewhere there are none to be seen)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from typing import NamedTuple

STOPPED, ENDED = "T", ("", "Z", "X")


class Process(NamedTuple):
    """``host`` is one boot of one machine, or one container on it; ``begun`` tells a process from a later one of the same number."""

    host: str
    pid: int
    begun: int

    def state(self) -> str:
        """Its letter in /proc ("T": stopped by a signal, "t": by a debugger); "" once it has gone."""
        fields = stat(self.pid)
        return fields[0] if fields and int(fields[19]) == self.begun else ""

    def is_debugged(self) -> bool:
        return status(self.pid).get("TracerPid", "0") != "0"

    def tell(self, text: str) -> None:
        """Write to its stderr, in its stead."""
        with contextlib.suppress(OSError):
            file = os.open(f"/proc/{self.pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
            with open(file, "wb", buffering=0) as stderr:
                stderr.write(f"{text}\n".encode())

    def end(self, spare: Collection[int]) -> None:
        """SIGKILL to it and to all that it has started, but for those to ``spare``, and for what these have started."""
        if self.state() in ENDED:
            return
        for pid in [self.pid, *_descendants(self.pid, {*spare, os.getpid()})]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def this() -> Process:
    """This process; its host is "" where there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            host = f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
        return Process(host, os.getpid(), int(stat(os.getpid())[19]))
    except (OSError, IndexError):
        return Process("", os.getpid(), 0)


def stat(pid: int, thread: int | None = None) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] for a process that is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread or pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []


def name(thread: int) -> str:
    """What a thread of this process calls itself."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status by name, of its first thread."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {}


def switches(pid: int) -> str:
    """How often its first thread gave up its processor, or lost it: as long as this stays, that thread has done nothing."""
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
