"""Finds out whether all ranks have said a word, with as many requests of each rank in any world."""

from __future__ import annotations

import hashlib

from torchbus._ranks.world import SharedStore

NUMBER_BYTES = 5  # the sum of those of 2**23 ranks fits into the 64 bits of the store's counters


class RollCall:
    """Each rank adds a number to one counter. The rank that completes the sum tells all others.

    Only the job knows the numbers, so nobody else can complete it. A rank must say the word once.
    """

    def __init__(self, store: SharedStore, word: str, rank: int, world_size: int) -> None:
        self._store = store
        self._word = word
        self._rank = rank
        self._world_size = world_size

    def say(self) -> bool:
        """Say the word. Returns whether this rank was the last."""
        numbers = self._numbers()
        is_last = self._store.count(self._word, numbers[self._rank]) == sum(numbers)
        if is_last:
            self._store.set(f"all {self._word}", "")
        return is_last

    def is_complete(self) -> bool:
        """Return whether all ranks have said it."""
        return self._store.check([f"all {self._word}"])

    def _numbers(self) -> list[int]:
        secret = self._store.secret(f"the numbers of {self._word}")
        drawn = hashlib.shake_256(secret).digest(NUMBER_BYTES * self._world_size)
        return [
            int.from_bytes(drawn[start : start + NUMBER_BYTES], "big")
            for start in range(0, len(drawn), NUMBER_BYTES)
        ]
