"""What ranks tell each other of a window: through the store, so that no rank waits for another."""

from __future__ import annotations

import json
from collections.abc import Iterator

from torchbus.plugin import Context, SealedStore

from torchbus_throughput.windows import Part

KEPT = 2  # a rank may be one window ahead of another
END = -1
"""The number of the whole session. It takes the place of no window: another rank may still ask."""


class Told:
    """Each rank writes its part of each window. Whoever wants them all reads them.

    With one rank, nothing is written.
    """

    def __init__(self, session: Context) -> None:
        self._rank, self._count = session.rank, session.world_size
        self._store: SealedStore | None = (
            session.world.shared.within("throughput") if session.world_size > 1 else None
        )
        self._own: dict[int, Part] = {}

    def tell(self, number: int, part: Part) -> None:
        """Write this rank's part of a window. Does not wait."""
        kept = {key: own for key, own in self._own.items() if number in (key + 1, END)}
        self._own = {**kept, number: part}
        if self._store is not None:
            self._store.set(_key(self._rank, number), json.dumps([number, *part]))

    def parts(self, number: int) -> list[Part] | None:
        """Return all ranks' parts of a window, or None if a rank has not come so far."""
        found = list(self._read(number))
        return found if len(found) == self._count else None

    def known(self, number: int) -> list[Part]:
        """Return the parts that were told."""
        return list(self._read(number))

    def _read(self, number: int) -> Iterator[Part]:
        for rank in range(self._count):
            if rank == self._rank:
                if number in self._own:
                    yield self._own[number]
            elif self._store is not None:
                text = self._store.read(_key(rank, number))
                told = [-1] if text is None else json.loads(text)
                if told[0] == number:
                    yield Part(*told[1:])


def _key(rank: int, number: int) -> str:
    return f"{rank}/{'end' if number == END else number % KEPT}"
