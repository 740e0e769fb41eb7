"""Whether all ranks have said a word."""

from __future__ import annotations

from torchbus._launch.store.sealed import SealedStore


class RollCall:
    """Rank 0 hears each, and tells all: as many requests as there are ranks."""

    def __init__(self, store: SealedStore, word: str, rank: int, world_size: int) -> None:
        self._store = store
        self._word = word
        self._rank = rank
        self._world_size = world_size
        self._heard = 0

    def say(self, text: str = "") -> None:
        self._store.set(f"{self._word}/{self._rank}", text)

    def is_complete(self) -> bool:
        """Does not wait. Rank 0 must ask, until it is."""
        if self._rank != 0:
            return self._store.check([f"all {self._word}"])
        while self._heard < self._world_size and self._store.check([f"{self._word}/{self._heard}"]):
            self._heard += 1
        if self._heard == self._world_size:
            self._store.set(f"all {self._word}", "")
        return self._heard == self._world_size
