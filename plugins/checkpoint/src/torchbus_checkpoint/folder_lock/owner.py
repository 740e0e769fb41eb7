"""The note in a lock, which tells people and other jobs who holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """The job that holds a lock. ``began`` tells it from a later process with the same number."""

    host: str
    pid: int
    since: str
    began: str = ""

    @classmethod
    def here(cls) -> Owner:
        return cls(
            socket.gethostname(),
            os.getpid(),
            time.strftime("%Y-%m-%d %H:%M:%S %z"),
            _began(os.getpid()),
        )

    @classmethod
    def read(cls, data: bytes) -> Owner | None:
        """Read a note. Return None for anything else."""
        try:
            found = cls(**json.loads(data))
        except (ValueError, TypeError, RecursionError):
            return None
        words = all(isinstance(word, str) for word in (found.host, found.since, found.began))
        return found if words and isinstance(found.pid, int) and 0 < found.pid < 1 << 31 else None

    def note(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether the process is alive. Ask only if it is of this host."""
        with contextlib.suppress(PermissionError):
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return False
        return not self.began or _began(self.pid) in ("", self.began)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host!r}, since {self.since}"


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the host's start, and the id of that start.

    Returns "" if the system does not tell.
    """
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{fields[19]} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return ""
