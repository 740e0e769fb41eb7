"""Finds processes by the marker in their environment, and listening ports (Linux)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

MARKER = "TORCHBUS_TEST_MARKER"
ENDING = (signal.SIGINT, signal.SIGHUP)


def take_signals() -> Callable[[], None] | None:
    """Return a ``preexec_fn`` that lets SIGINT and SIGHUP end a process; None if they do anyway.

    Jobs that a shell starts with ``&`` ignore SIGINT, those under nohup ignore SIGHUP, and their
    processes inherit that.
    """
    ignored = [one for one in ENDING if signal.getsignal(one) is signal.SIG_IGN]
    return partial(_take, ignored) if ignored else None


def _take(ignored: list[signal.Signals]) -> None:
    for one in ignored:
        signal.signal(one, signal.SIG_DFL)


def orphans(marker: str) -> list[str]:
    """Return the commands of processes that descend from the ``Script`` with this marker."""
    return [_command(pid) for pid in marked(marker)]


def stretched(seconds: float) -> float:
    """Return how long to wait, under the present load, for what takes ``seconds`` when idle."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until_lost(marker: str, seconds: float) -> list[str]:
    begun_s = time.monotonic()
    while (left := orphans(marker)) and time.monotonic() < begun_s + stretched(seconds):
        time.sleep(0.02)
    return left


def marked(marker: str) -> list[int]:
    text = f"{MARKER}={marker}".encode()
    numbers = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in numbers if pid != os.getpid() and text in _read(pid, "environ")]


def _command(pid: int) -> str:
    return f"{pid}: " + _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def listening_ports() -> list[int]:
    """Return the TCP ports on which this process listens (Linux)."""
    mine = {os.readlink(entry) for entry in Path("/proc/self/fd").glob("*") if entry.is_symlink()}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    listening = [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in mine]
    return sorted({int(line[1].split(":")[1], 16) for line in listening})
