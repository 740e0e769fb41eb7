"""Finds out whether all ranks have said a word."""

from __future__ import annotations

from torchbus._launch.store.sealed import SealedStore


class RollCall:
    """Rank 0 hears each rank and tells all, which costs one request per rank."""

    def __init__(self, store: SealedStore, word: str, rank: int, world_size: int) -> None:
        self._store = store
        self._word = word
        self._rank = rank
        self._world_size = world_size
        self._heard = 0

    def say(self, text: str = "") -> None:
        self._store.set(f"{self._word}/{self._rank}", text)

    def is_complete(self) -> bool:
        """Return whether all ranks have said it; rank 0 must ask until they have."""
        if self._rank != 0:
            return self._store.check([f"all {self._word}"])
        while self._heard < self._world_size and self._store.check([f"{self._word}/{self._heard}"]):
            self._heard += 1
        if self._heard == self._world_size:
            self._store.set(f"all {self._word}", "")
        return self._heard == self._world_size
