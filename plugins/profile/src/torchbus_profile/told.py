"""What ranks tell rank 0 of their last recording, through the store: nobody waits."""

from __future__ import annotations

import json

from torchbus.plugin import Context, SharedStore

from torchbus_profile.result import Profiled
from torchbus_profile.shares import Shares


class Told:
    """Each rank writes how long its steps took, and their shares. Rank 0 reads them all."""

    def __init__(self, session: Context) -> None:
        self._rank, self._count = session.rank, session.world_size
        self._store: SharedStore | None = (
            session.world.shared.within("profile") if session.world_size > 1 else None
        )

    def tell(self, found: Profiled) -> None:
        """Write this rank's part. Does not wait."""
        if self._store is not None:
            told = json.dumps([found.last_step, found.seconds, *found.shares])
            self._store.set(str(self._rank), told)

    def known(self, own: Profiled) -> dict[int, tuple[float, Shares]]:
        """Return seconds and shares of the same steps, by rank, once all ranks have told.

        Until then, it returns this rank's. Rank 0 asks for all others at once.
        """
        keys = [str(rank) for rank in range(self._count)]
        told = None if self._store is None else self._store.read_all(keys)
        found = {self._rank: (own.seconds, own.shares)}
        for rank, (step, seconds, *parts) in enumerate(map(json.loads, told or ())):
            if step == own.last_step:
                found[rank] = seconds, Shares(*parts)
        return dict(sorted(found.items()))
