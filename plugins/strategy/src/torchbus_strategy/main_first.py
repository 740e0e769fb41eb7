"""One rank runs a block first; the others wait for its result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchbus.plugin import RankFailed

from torchbus_strategy.collectives import sealed, sendable, unsealed

if TYPE_CHECKING:
    from torchbus.plugin import Context
    from torchbus.runtime.services import JobService


class Turns:
    """Blocks that one rank runs before the others, by name in the job's store.

    They need no collective. So the time-out of a process group does not end a long block of one
    rank, and the guards find a rank that does not come.
    """

    def __init__(self, session: Context, job: JobService) -> None:
        self._job = job
        self._rank = session.world.rank
        self._store = session.world.shared.within("turns")

    @contextmanager
    def after(self, name: str, what: str, is_first: bool) -> Iterator[None]:
        """Run the block on the first rank, and then on the others.

        If the first rank's block raises an error, the others raise it too, before their blocks.
        ``name`` is the same on all ranks that wait for that rank, and different each time. ``what``
        is for messages.
        """
        if is_first:
            with self._published(name):
                yield
        else:
            self._wait(name, what)
            yield

    @contextmanager
    def _published(self, name: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._store.set(name, sealed((self._rank, sendable(error))))
            raise
        self._store.set(name, sealed(None))

    def _wait(self, name: str, what: str) -> None:
        self._job.wait_in(what)
        try:
            # the guard ends the wait after timeout_s
            self._job.wait_until(lambda _: self._store.check([name]), math.inf)
        finally:
            self._job.go_on()
        reason = unsealed(self._store.get(name), "the first rank")
        if reason is not None:
            rank, error = reason
            raise error from RankFailed(f"rank {rank} raised this in {what}")
