"""The ranks of this host as processes: whether they live, and how another rank ends them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from torchbus._launch.frozen import process
from torchbus._launch.frozen.process import ENDED, STOPPED, Process
from torchbus._launch.store.sealed import SealedStore

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class Neighbours:
    """The other ranks of this host, found through the store.

    ``ranks``: those that may be on this host, including this one.
    """

    def __init__(self, store: SealedStore, rank: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._mine = process.this()
        self._unknown = {other for other in ranks if other != rank} if self._mine.host else set()
        self._meets_next_s, self._pause_s = 0.0, FIRST_PAUSE_S
        self.found: dict[int, Process] = {}
        store.set(f"process/{rank}", json.dumps(self._mine))

    def meet(self) -> None:
        """Find ranks that have joined since the last call; call it often."""
        if not self._unknown or time.monotonic() < self._meets_next_s:
            return
        self._meets_next_s = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
        for rank in [rank for rank in self._unknown if self._store.check([f"process/{rank}"])]:
            self._unknown.remove(rank)
            other = Process(*json.loads(self._store.get(f"process/{rank}")))
            if other.host == self._mine.host:
                self.found[rank] = other

    def gone(self) -> list[int]:
        """Return the ranks whose processes have ended."""
        return [rank for rank, other in self.found.items() if other.state() in ENDED]

    def is_debugged(self, rank: int) -> bool:
        return rank in self.found and self.found[rank].is_debugged()

    def is_stopped(self, rank: int) -> bool:
        return rank in self.found and self.found[rank].state() == STOPPED

    def words(self, rank: int) -> str:
        """Say why a rank may be silent."""
        if rank not in self.found:
            return (
                f"rank {rank} is stopped, in native code that holds Python's lock, or its machine"
                " is cut off"
            )
        how = (
            "is stopped by a signal"
            if self.is_stopped(rank)
            else "is in native code that holds Python's lock"
        )
        return f"its process {self.found[rank].pid} {how}"

    def end(self, rank: int, text: str) -> None:
        """End a rank's process; first write ``text`` to its stderr."""
        other = self.found.pop(rank, None)
        if other is not None:
            if text:
                other.tell(text)
            other.end({neighbour.pid for neighbour in self.found.values()})
