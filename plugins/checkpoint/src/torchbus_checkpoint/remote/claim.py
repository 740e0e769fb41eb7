"""The lock of a URL: only one job at a time writes to it.

A store has no locks. So a job leaves a note in it, and a job that finds a later one's note stops.
"""

from __future__ import annotations

import os
import sys

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.folder_lock import Owner
from torchbus_checkpoint.remote.store import Store
from torchbus_redaction.redactor import redacted

NAME = ".torchbus-job.json"


class Claim:
    """This job's lock file in the store. All methods raise StoreError.

    ``take`` and ``check`` raise CheckpointError if another job writes there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owner = Owner.here()
        self.is_consumed = False

    def take(self) -> None:
        """Write this job's lock file, unless the last job is alive on this host.

        A job on another host may be dead. If it is not, it stops at its next checkpoint.
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
        self._store.write(NAME, self._owner.note())
        self.is_consumed = True

    def check(self) -> None:
        """Raise if another job has taken the lock. Call it before each write."""
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
            self._store.remove(NAME)

    def _other(self) -> Owner | None:
        note = self._store.read(NAME)
        return None if note is None else Owner.read(note)


def say(text: str) -> None:
    print(f"torchbus: {redacted(text)}", file=sys.stderr, flush=True)
