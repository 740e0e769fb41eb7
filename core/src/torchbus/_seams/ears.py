"""What a seam hears with, and replaces with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchbus._bus.bus import Bus
from torchbus._seams.patch import replace


class Ears:
    """The part of the bus that a seam needs. ``bus``: for what outlives the seam, such as an iterator that the loop holds.

    Where somebody has put something over a function of the seam, it stays below when the seam is removed: it is deaf from then on.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.hook: Any = bus.hook
        self._listeners: list[list[Callable[..., Any]]] = []

    def listeners(self, event: str) -> list[Callable[..., Any]]:
        """The functions of a hot event in calling order."""
        self._listeners.append(list(self.bus.listeners(event)))
        return self._listeners[-1]

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any], becomes_inert: bool = False) -> Callable[[], None]:
        """Set ``owner.name`` to ``make(original)``; the returned function undoes it."""
        return replace(owner, name, make, becomes_inert, self._be_deaf)

    def _be_deaf(self) -> None:
        self.hook = _Nobody()
        for listeners in self._listeners:
            listeners.clear()


class _Nobody:
    """Answers every event as if nobody listened."""

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda **arguments: None
