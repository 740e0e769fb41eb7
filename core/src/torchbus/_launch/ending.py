"""How the ranks learn that all have reached their end, and rank 0 that all have left."""

from __future__ import annotations

import time

from torchbus._launch.store.news import ALL_ENDED, ENDED, News
from torchbus._launch.store.roll_call import RollCall
from torchbus._launch.watch.ended import Ended
from torchbus._ranks.world import SharedStore, World


class Ending:
    """This rank's part in the end of the job. All methods raise RuntimeError without the store.

    The number of a rank's requests does not depend on the number of ranks.
    """

    def __init__(self, world: World, store: SharedStore, news: News) -> None:
        self._rank = world.rank
        self._store = store
        self._news = news
        self._ended = RollCall(store, "ended", world.rank, world.world_size)
        self._left = RollCall(store, "left", world.rank, world.world_size)

    def say(self, mine: Ended) -> None:
        """Say that this rank has reached its end.

        All ranks hear of it, unless they have heard of one that had done no more.
        """
        told = map(Ended.read, self._news.all(ENDED))
        if not any(other.is_no_more_than(mine) for other in told):
            self._news.tell(self._store, ENDED + mine.written())
        if self._ended.say():
            self._news.tell(self._store, ALL_ENDED)

    @property
    def is_complete(self) -> bool:
        """Whether this rank has heard that all have said it."""
        return self._news.has(ALL_ENDED)

    def leave(self) -> None:
        """Say that this rank needs the store no longer."""
        self._store.set(f"left/{self._rank}", "")  # for a rank that misses this one
        self._left.say()

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all ranks have left."""
        deadline, pause_s = time.monotonic() + seconds, 0.002
        while not self._left.is_complete() and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
