"""The batches that were taken and that live."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from torch import Tensor

from torchbus._batches.taken import Origin, Taken, without_gone

# at so many entries, look for those whose tensors are gone; then at twice as many as are left
KEPT = 8


class Kept:
    """The batches that were taken and that live.

    ``fresh``: taken and not used yet, the newest last. ``used``: by their keys. ``count``: how many
    were taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = {"fresh": KEPT, "used": KEPT}
        self.fresh: list[Taken] = []
        self.used: dict[int, Taken] = {}
        self.count = 0

    def clear(self) -> None:
        self.fresh, self.used = [], {}

    def add(self, taken: Taken) -> None:
        """Add a batch. Other threads than the loop's may call it."""
        with self._lock:
            if len(self.fresh) >= self._room["fresh"]:
                self.fresh = without_gone(self.fresh)
                self._room["fresh"] = max(KEPT, 2 * len(self.fresh))
            self.count += 1
            taken.serial = self.count
            self.fresh.append(taken)

    def snapshot(self) -> list[Taken]:
        """Copy the fresh ones, which other threads may add to."""
        with self._lock:
            return list(self.fresh)

    def use_only(self, one: Taken) -> None:
        """Use the only one that was taken since the last backward."""
        with self._lock:
            self.fresh.remove(one)
        self.used[one.key] = one
        self._forget_gone_if_many()

    def use(self, chosen: tuple[Taken, ...]) -> None:
        """Take these out of the fresh ones, and what is gone with them."""
        with self._lock:
            if len(self.fresh) == 1 and self.fresh[0] is chosen[0]:
                self.fresh.clear()
            else:
                self.fresh = [one for one in self.fresh if one not in chosen and one.lives]
        self._forget_gone_if_many()

    def forget_gone(self) -> None:
        self.used = {key: one for key, one in self.used.items() if one.lives}
        self._room["used"] = max(KEPT, 2 * len(self.used))

    def _forget_gone_if_many(self) -> None:
        if len(self.used) >= self._room["used"]:
            self.forget_gone()

    # Which of them wait ---------------------------------------------------------------------------

    def waiting(self, origin: Origin) -> int:
        """Return how many batches of a pass wait in a wrapper that fetches ahead.

        They are taken, alive, and not used.
        """
        return _ahead(origin, [one for one in self.fresh if one.origin is origin and one.lives])

    @property
    def fetched(self) -> list[Tensor]:
        """The tensors of all batches that wait in wrappers."""
        return [
            tensor for one in list(self.fresh) if self.waiting(one.origin) for tensor in one.tensors
        ]

    def held(self, origin: Origin, feeding: Iterable[Taken]) -> int:
        """Return how many batches of a pass are alive, apart from those that feed now."""
        kept, feeding = [*self.snapshot(), *self.used.values()], list(feeding)
        living = [one for one in kept if one.origin is origin and one.lives and one not in feeding]
        return _ahead(origin, living)


def _ahead(origin: Origin, living: list[Taken]) -> int:
    """A single batch is the one that the loop works on, unless batches are taken ahead."""
    return len(living) if origin.ahead or len(living) > 1 else 0
