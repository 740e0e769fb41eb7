"""The loaders that the loop has read, and the random numbers that belong to them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sized
from typing import cast

from torch.utils.data import DataLoader

from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.state.plain import State


def signature(loader: DataLoader[object]) -> str:
    """Describe what a loader is over, in words that are the same in the next run."""
    try:
        size = f"{len(cast(Sized, loader.dataset))} samples"
    except TypeError:
        size = "a stream"
    return f"{type(loader.dataset).__name__}, {size}, batch_size {loader.batch_size}"


class KnownLoaders:
    """Keeps no loader alive.

    States from a checkpoint wait here until a loader with the same signature is read.
    """

    def __init__(self) -> None:
        self._loaders: list[weakref.ref[DataLoader[object]]] = []
        self._waiting: list[tuple[str, State]] = []

    def __iter__(self) -> Iterator[DataLoader[object]]:
        return iter(
            [loader for loader in (known() for known in self._loaders) if loader is not None]
        )

    def add(self, loader: DataLoader[object]) -> None:
        """The loop reads a loader. If it is new, set its generators to a waiting state."""
        if not any(known is loader for known in self):
            self._loaders = [*map(weakref.ref, self), weakref.ref(loader)]
            self._put(loader)

    def state(self) -> list[list[object]]:
        """Return the signature of each loader, and the states of its generators."""
        return [[signature(loader), generators.read(loader)] for loader in self]

    def load(self, saved: list[tuple[str, State]]) -> None:
        """Set the generators of the known loaders, and of others when the loop reads them."""
        self._waiting = [(over, states) for over, states in saved if states]
        for loader in self:
            self._put(loader)

    def _put(self, loader: DataLoader[object]) -> None:
        for index, (over, states) in enumerate(self._waiting):
            if over == signature(loader):
                generators.write(loader, states)
                del self._waiting[index]
                return
