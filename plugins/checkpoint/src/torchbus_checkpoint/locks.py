"""Locks a folder or a URL, so that only one job at a time writes checkpoints there.

In a folder, a job holds a lock of the operating system. The lock file contains a note for people
that names the job. A store has no locks: there a job writes only its note, and stops if it later
finds the note of another job.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from torchbus.plugin import warn

from torchbus_checkpoint.disk import formats
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.remote.store import Store
from torchbus_rank0.printing import say
from torchbus_rank0.whole_files import OpenHere, try_lock

NAME = ".lock"
PATIENCE_S = 5.0
"""The time for which a job waits for the lock, as a job that was just killed may still be ending.
"""
FULL = (errno.ENOSPC, errno.EDQUOT)
NOTE_BYTES = 10_000


class FolderLock:
    """Creates the folder if needed, and locks it.

    Raises CheckpointError if another job has locked it, or if it can't be written.
    """

    def __init__(self, parent: Path) -> None:
        self._parent, self._path = parent, parent / NAME
        self._made = not parent.exists()
        try:
            os.makedirs(parent, exist_ok=True)
            self._file = OpenHere(self._acquire())
        except OSError as error:
            raise CheckpointError(
                f"checkpoint={str(parent)!r}: can't write to this folder: {error.strerror or error}"
            ) from None
        self._say()

    def release(self) -> None:
        """Remove the lock file, and then unlock it. The next job creates a new file.

        If this job created the folder and wrote nothing there, remove the folder, too.
        """
        with contextlib.suppress(OSError):
            if self._is_the_one(self._file.descriptor):
                os.unlink(self._path)
        self._file.close()
        with contextlib.suppress(OSError):
            if self._made:
                os.rmdir(self._parent)

    def _acquire(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            descriptor = self._open()
            has_it = try_lock(descriptor)
            owner = Owner.read(os.pread(descriptor, NOTE_BYTES, 0))
            if has_it is None:
                has_it = self._unlocked(owner)
            if has_it and self._is_the_one(descriptor):
                return descriptor
            os.close(descriptor)
            if not has_it and time.monotonic() > deadline:
                raise CheckpointError(
                    f"another job writes its checkpoints to {self._parent}:"
                    f" {owner or 'an unknown one'}. Wait until it ends, or use another folder"
                    f" (if its host no longer exists, remove {self._path})"
                )
            time.sleep(0.05)

    def _open(self) -> int:
        """Open the lock file. If the disk is full, first remove the remains of killed jobs.

        That is safe, because without a lock file no other job is alive.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return os.open(self._path, flags, 0o666)
        except OSError as error:
            if error.errno not in FULL:
                raise
        formats.sweep(self._parent)
        return os.open(self._path, flags, 0o666)

    def _unlocked(self, owner: Owner | None) -> bool:
        """Whether the note allows this job to use the folder, on a file system without locks."""
        if owner is not None and owner.is_here:
            return not owner.is_alive or owner.pid == os.getpid()
        last = (
            f"; the last job that wrote there, and did not record its end, was {owner}"
            if owner is not None
            else ""
        )
        warn(
            f"the file system of {self._parent} has no locks: make sure that only one job at a time"
            f" writes there{last}"
        )
        return True

    def _is_the_one(self, descriptor: int) -> bool:
        """Whether the locked file is still the file at the path."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(
                os.fstat(descriptor), os.stat(self._path, follow_symlinks=False)
            )
        return False

    def _say(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk, the lock works without the note
            os.ftruncate(self._file.descriptor, 0)
            os.pwrite(self._file.descriptor, Owner.here().note(), 0)


@dataclass(frozen=True)
class Owner:
    """The job that holds a lock. ``began`` excludes a later process with the same ``pid``."""

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
        are_texts = all(isinstance(word, str) for word in (found.host, found.since, found.began))
        return (
            found if are_texts and isinstance(found.pid, int) and 0 < found.pid < 1 << 31 else None
        )

    def note(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether the process is alive. Valid only if ``is_here``."""
        with contextlib.suppress(PermissionError):
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return False
        return not self.began or _began(self.pid) in ("", self.began)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host!r}, since {self.since}"


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the host's boot, and the id of that boot.

    Returns "" if the system does not provide them.
    """
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{fields[19]} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return ""


NOTE = ".torchbus-job.json"


class Claim:
    """This job's lock file in the store. All methods may raise StoreError.

    ``take`` and ``check`` raise CheckpointError if another job writes there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owner = Owner.here()
        self.is_consumed = False

    def take(self) -> None:
        """Write this job's lock file, unless the last job is alive on this host.

        A job on another host may have ended. If it still runs, it stops at its next checkpoint.
        """
        other = self._other()
        if other is not None and other.is_here and other.is_alive and other.pid != os.getpid():
            raise CheckpointError(
                f"another job writes its checkpoints to {self._store.url}: {other}. Wait until it"
                " ends, or use another folder"
            )
        if other is not None and not other.is_here:
            say(
                f"the last job that wrote to {self._store.url} was {other}, which did not record"
                " its end: if it still runs, it stops at its next checkpoint"
            )
        self._store.write(NOTE, self._owner.note())
        self.is_consumed = True

    def check(self) -> None:
        """Raise if another job has written its lock file since. Called before each upload."""
        if not self.is_consumed:
            return self.take()
        other = self._other()
        if other is not None and other != self._owner:
            raise CheckpointError(
                f"another job now writes its checkpoints to {self._store.url}: {other}. This job"
                " stops; its own checkpoints are in the local folder"
            )

    def release(self) -> None:
        if self.is_consumed and self._other() == self._owner:
            self._store.remove(NOTE)

    def _other(self) -> Owner | None:
        try:
            note = self._store.read(NOTE, NOTE_BYTES)
        except CheckpointError:
            raise CheckpointError(
                f"{self._store.url}/{NOTE} is a link, a pipe or too long, and no job wrote it:"
                " remove it"
            ) from None
        return None if note is None else Owner.read(note)
