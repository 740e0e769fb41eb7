"""What ranks tell rank 0 of their last recording, through the store: nobody waits."""

from __future__ import annotations

import json

from torchbus.plugin import Context, SealedStore

from torchbus_profile.result import Profiled
from torchbus_profile.shares import Shares


class Told:
    """Each rank writes how long its steps took, and their shares. Rank 0 reads them all."""

    def __init__(self, session: Context) -> None:
        self._rank, self._count = session.rank, session.world_size
        self._store: SealedStore | None = (
            session.world.shared.within("profile") if session.world_size > 1 else None
        )

    def tell(self, found: Profiled) -> None:
        """Write this rank's part. Does not wait."""
        if self._store is not None:
            told = json.dumps([found.last_step, found.seconds, *found.shares])
            self._store.set(str(self._rank), told)

    def known(self, own: Profiled) -> dict[int, tuple[float, Shares]]:
        """Return seconds and shares of the same steps, by rank: of the ranks that have told."""
        found = {self._rank: (own.seconds, own.shares)}
        for rank in range(self._count):
            text = self._store.read(str(rank)) if self._store is not None else None
            if text is not None:
                step, seconds, *parts = json.loads(text)
                if step == own.last_step:
                    found[rank] = seconds, Shares(*parts)
        return dict(sorted(found.items()))
