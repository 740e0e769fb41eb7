"""What ranks tell each other of a window: through the store, so that no rank waits for another.

The store serves all ranks. So no rank asks for the others one by one, and in large worlds they do
not tell of every window.
"""

from __future__ import annotations

import json

from torchbus.plugin import Context, SharedStore

from torchbus_throughput.windows import Part

KEPT = 2  # a rank may be one window ahead of another
RANKS_THAT_TELL_ALL = 1000
END = -1
"""The number of the whole session. It takes the place of no window: another rank may still ask."""


class Told:
    """Each rank writes its part of a window. Whoever wants them all reads them at once.

    With one rank, nothing is written. ``every``: ranks tell of one window in so many.
    """

    def __init__(self, session: Context) -> None:
        self._rank, self._count = session.rank, session.world_size
        self._store: SharedStore | None = (
            session.world.shared.within("throughput") if session.world_size > 1 else None
        )
        self.every = 1 + (self._count - 1) // RANKS_THAT_TELL_ALL

    def tells(self, number: int) -> bool:
        """Whether ranks tell of this window."""
        return number == END or number % self.every == 0

    def tell(self, number: int, part: Part) -> None:
        """Write this rank's part of a window. Does not wait."""
        if self._store is not None:
            self._store.set(self._key(self._rank, number), json.dumps([number, *part]))

    def parts(self, number: int, own: Part) -> list[Part] | None:
        """Return all ranks' parts of a window, or None if a rank has not come so far."""
        if self._store is None:
            return [own]
        found = self._store.read_all([self._key(rank, number) for rank in range(self._count)])
        told = [json.loads(text) for text in found or ()]
        is_whole = found is not None and all(one[0] == number for one in told)
        return [Part(*one[1:]) for one in told] if is_whole else None

    def _key(self, rank: int, number: int) -> str:
        return f"{rank}/{'end' if number == END else number // self.every % KEPT}"
