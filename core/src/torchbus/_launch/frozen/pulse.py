"""Each rank's sign of life: a count in the store that a thread of the rank raises."""

from __future__ import annotations

from collections.abc import Sequence

from torchbus._launch.watch.fair import FairClock
from torchbus._ranks.world import SharedStore

LONGEST_PAUSE_S = 30.0  # one request in 10 s: less than one a second for all ranks of a host
HEARS_ALL_AFTER = 0.4


class Pulse:
    """Raises this rank's count, and reads that of the next rank, which reads that of its next one.

    Once a rank is silent for a part of ``freeze_timeout``, it reads those of all ``heard`` ranks.
    So the number of requests does not depend on the number of ranks.

    In a stopped process, or one whose native code holds Python's lock, no Python thread runs. In a
    slow process they still run.
    """

    def __init__(
        self,
        store: SharedStore,
        rank: int,
        next_rank: int,
        heard: Sequence[int],
        clock: FairClock,
        freeze_timeout_s: float,
    ) -> None:
        self._store = store
        self._rank = rank
        self._freeze_timeout_s = freeze_timeout_s
        self._next_rank = next_rank
        self._pause_s = min(max(freeze_timeout_s / 20, 0.1), LONGEST_PAUSE_S)
        self._clock = clock
        self._next_s = 0.0
        self._beats = 0
        self._last = dict.fromkeys(heard, (0, 0.0))

    def beat(self) -> bool:
        """Raise this rank's count and read the others' if the pause is over; call it often."""
        now_s = self._clock.seconds()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._pause_s
        self._beats += 1
        self._store.set(f"pulse/{self._rank}", str(self._beats))
        hears_all = bool(self.silent(HEARS_ALL_AFTER))
        for rank, (count, _) in self._last.items():
            if not hears_all and rank != self._next_rank:
                self._last[rank] = (count, now_s)
                continue
            heard = int(self._store.read(f"pulse/{rank}") or 0)
            if heard != count or heard == 0:  # a rank that has not begun is not frozen
                self._last[rank] = (heard, now_s)
        return True

    def hear_anew(self, rank: int) -> None:
        """Restart the time of silence of a rank that other evidence shows to be alive."""
        self._last[rank] = (self._last[rank][0], self._clock.seconds())

    def silent(self, part: float = 1.0) -> list[int]:
        """Return the ranks that were silent for this part of ``freeze_timeout``."""
        now_s = self._clock.seconds()
        return [
            rank
            for rank, (_, since_s) in self._last.items()
            if now_s - since_s > part * self._freeze_timeout_s
        ]
