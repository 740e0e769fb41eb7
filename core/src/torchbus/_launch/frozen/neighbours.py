"""The ranks of this host as processes: whether they live, and how another rank ends them."""

from __future__ import annotations

import json
import time

from torchbus._launch.frozen import process
from torchbus._launch.frozen.process import ENDED, STOPPED, Process
from torchbus._ranks.world import SharedStore

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0


class Neighbours:
    """The other ranks of this host, found through the store, where each host has a list.

    ``at_most``: how many ranks may be on this host, including this one.
    """

    def __init__(self, store: SharedStore, rank: int, at_most: int) -> None:
        self._store = store
        self._mine = process.this()
        self._at_most = at_most if self._mine.host else 0
        self._meets_next_s, self._pause_s = 0.0, FIRST_PAUSE_S
        self._listed = 0
        self.found: dict[int, Process] = {}
        if self._mine.host:
            self._enter(json.dumps([rank, self._mine]))

    def _enter(self, mine: str) -> None:
        """Put this rank at the end of its host's list, and read what is before it."""
        while (there := self._store.compare_set(self._entry(), "", mine)) != mine.encode():
            self._take(there)
        self._listed += 1

    def meet(self) -> None:
        """Find ranks that have joined since the last call; call it often."""
        if self._listed >= self._at_most or time.monotonic() < self._meets_next_s:
            return
        self._meets_next_s = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
        while self._listed < self._at_most and (there := self._store.read(self._entry())):
            self._take(there)

    def _take(self, entry: bytes) -> None:
        rank, other = json.loads(entry)
        self.found[rank] = Process(*other)
        self._listed += 1

    def _entry(self) -> str:
        return f"processes/{self._mine.host}/{self._listed}"

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
