"""How the ranks learn that all have reached their end, and rank 0 that all have left."""

from __future__ import annotations

import time
from collections.abc import Iterable

from torchbus._launch.store.news import ALL_ENDED, ENDED, News
from torchbus._launch.store.roll_call import RollCall
from torchbus._launch.store.sealed import SealedStore
from torchbus._launch.watch.ended import Ended
from torchbus._ranks.world import World


class Ending:
    """This rank's part in the end of the job. All methods raise RuntimeError without the store.

    The number of this rank's requests does not depend on the number of ranks. Rank 0 makes a few
    for each rank.
    """

    def __init__(self, world: World, store: SealedStore, news: News) -> None:
        self._is_main = world.is_main
        self._rank = world.rank
        self._store = store
        self._news = news
        self._ended = RollCall(store, "ended", world.rank, world.world_size)

    def say(self, mine: Ended) -> None:
        """Say that this rank has reached its end.

        All ranks hear of it, unless they have heard of one that had done no more.
        """
        self._ended.say(mine.written())
        told = [Ended.read(text.encode()) for text in self._news.all(ENDED)]
        if not any(other.is_no_more_than(mine) for other in told):
            self._news.tell(self._store, ENDED + mine.written())

    def is_complete(self) -> bool:
        """Return whether all ranks have said it; rank 0 must ask until they have."""
        if self._is_main and self._ended.is_complete():
            self._news.tell(self._store, ALL_ENDED)
            return True
        return self._news.has(ALL_ENDED)

    def leave(self) -> None:
        """Say that this rank needs the store no longer."""
        self._store.set(f"left/{self._rank}", "")

    def wait_for(self, others: Iterable[int], seconds: float) -> None:
        """Wait until these ranks have left."""
        staying, deadline = sorted(others, reverse=True), time.monotonic() + seconds
        while staying and time.monotonic() < deadline:
            if self._store.check([f"left/{staying[-1]}"]):
                staying.pop()
            else:
                time.sleep(0.005)
