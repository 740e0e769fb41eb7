"""The end of the job: ranks announce that their loop has ended, and leave together."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from torchbus.world import World

from torchbus_launch.broadcast_log import ALL_ENDED, ENDED, LOOPS_ENDED, BroadcastLog
from torchbus_launch.rank_position import RankPosition
from torchbus_launch.store import SealedStore, StoreBarrier


class EndCounts(NamedTuple):
    """The counts of a rank at its end.

    ``collectives`` counts those of the main process group; None if its backend does not count them.
    """

    rank: int
    backwards: int
    collectives: int | None

    def written(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, text: str) -> EndCounts:
        return cls(*json.loads(text))

    def is_no_more_than(self, other: EndCounts) -> bool:
        """Return whether every rank blocked on the other is also blocked on this one."""
        return self.backwards <= other.backwards and (
            other.collectives is None
            or (self.collectives is not None and self.collectives <= other.collectives)
        )

    def never_comes_to(self, place: RankPosition, begun: int | None) -> bool:
        """Return whether a rank waits in a synchronisation that this rank has never begun.

        The waiting rank is at ``place`` and has begun ``begun`` collectives. Every rank takes part
        in each backward and in each collective of the main group, but perhaps not in collectives of
        other groups. A rank that waits in backward 12 may have counted that backward already.
        """
        match place.waits_in.split():
            case ["backward", number, *_] if int(number) > self.backwards:
                return True
        return begun is not None and self.collectives is not None and begun > self.collectives


class JobEnd:
    """This rank's part in the end of the job. All methods raise RuntimeError without the store.

    The number of a rank's requests does not depend on the number of ranks.
    """

    def __init__(self, world: World, store: SealedStore, log: BroadcastLog) -> None:
        self._rank = world.rank
        self._store = store
        self._log = log
        self._loop_ended = StoreBarrier(store, "loop ended", world.rank, world.world_size)
        self._ended = StoreBarrier(store, "ended", world.rank, world.world_size)
        self._left = StoreBarrier(store, "left", world.rank, world.world_size)

    def say_loop_ended(self, mine: EndCounts) -> None:
        """Announce that this rank's loop has ended, before the collectives at the end of the block.

        The counts are broadcast unless a rank with equal or smaller counts has been announced.
        """
        reported = map(EndCounts.read, self._log.all(ENDED))
        if not any(other.is_no_more_than(mine) for other in reported):
            self._log.append(self._store, ENDED + mine.written())
        if self._loop_ended.say():
            self._log.append(self._store, LOOPS_ENDED)

    def say(self) -> None:
        """Announce that this rank has reached the end of the block."""
        if self._ended.say():
            self._log.append(self._store, ALL_ENDED)

    @property
    def have_loops_ended(self) -> bool:
        """Whether the loops of all ranks have ended, as far as this rank knows."""
        return self._log.has(LOOPS_ENDED)

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have reached the end of the block, as far as this rank knows."""
        return self._log.has(ALL_ENDED)

    def leave(self) -> None:
        """Announce that this rank no longer needs the store."""
        self._store.set(f"left/{self._rank}", "")  # for a rank that gets no heartbeat of this one
        self._left.say()

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all ranks have left."""
        deadline, pause_s = time.monotonic() + seconds, 0.002
        while not self._left.is_complete() and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
