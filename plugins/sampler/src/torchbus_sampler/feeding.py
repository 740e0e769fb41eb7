"""Which loaders the backward passes are fed from."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import DataLoader
from torchbus.notices import warn
from torchbus.share import Share

UNLIKE = (
    "two loaders gave one step batches whose shares differ in weight ({}): the step's gradient is weighted by the last and so is slightly "
    "off. Make the loaders equal in length and batch size, or use drop_last=True"
)


class Feeding:
    """The loader of the last batch has fed a backward. Of others (``zip(a, b)``) one batch before a backward proves
    nothing: it may be a fixed one to look at. Batches before two backwards do."""

    def __init__(self) -> None:
        self._fed: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._before: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._weights: dict[int, float] = {}
        self._now: list[weakref.ref[DataLoader[Any]]] = []
        self._warned = False

    def __contains__(self, loader: DataLoader[Any]) -> bool:
        return loader in self._fed

    def may_contain(self, loader: DataLoader[Any]) -> bool:
        """Whether a batch of it came before a backward, though one was not enough to tell."""
        return loader in self._fed or loader in self._before

    def add(self, loader: DataLoader[Any]) -> None:
        """It has fed a backward."""
        self._fed.add(loader)

    def take(self, loader: DataLoader[Any], share: Share) -> None:
        """The loop takes a batch."""
        if not self._now or self._now[-1]() is not loader:
            self._now.append(weakref.ref(loader))
        self._weights[id(loader)] = share.weight

    def leave(self, loader: DataLoader[Any]) -> None:
        """It has come to its end and fed no backward: its last batch has no part in the next step."""
        self._weights.pop(id(loader), None)

    def backward(self) -> None:
        """The loop calls ``backward``."""
        if not self._now:
            return
        taken = [loader for loader in (reference() for reference in self._now) if loader is not None]
        self._fed.update(taken[-1:])
        others = {loader for loader in taken[:-1] if loader not in self._fed}
        self._fed.update(others & set(self._before))
        self._before.update(others)
        self._warn_unlike()
        self._now, self._weights = [], {}

    def _warn_unlike(self) -> None:
        if len(set(self._weights.values())) > 1 and not self._warned:
            self._warned = True
            warn(UNLIKE.format(", ".join(f"{weight:.3g}" for weight in self._weights.values())))
