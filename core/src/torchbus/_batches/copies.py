"""Batches that feed a backward in the form of copies, which no graph shows."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torchbus._batches.taken import Origin, Taken


class Copies:
    """Counts batches that came before a backward and that no graph shows.

    One batch before a backward proves nothing: the loop may only look at it. One before each of two
    backwards does, if both come from one source: from one pass or, if all are copies, from one
    loader.
    """

    def __init__(self) -> None:
        self._times: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    def among(
        self, fresh: list[Taken], found: list[Taken], source: Callable[[Origin], object]
    ) -> list[Taken]:
        """Return the batches of passes not in ``found`` that the loop computes with."""
        passes = {id(one.origin) for one in found}
        last = {
            id(one.origin): one
            for one in fresh
            if id(one.origin) not in passes and not (one.origin.evaluates or one.origin.ahead)
        }
        for one in last.values():
            self._times[source(one.origin)] = self._times.get(source(one.origin), 0) + 1
        return [one for one in last.values() if self._times[source(one.origin)] > 1]

    def has(self, loader: object) -> bool:
        """Whether one of a loader's batches came before a backward."""
        return loader in self._times
