"""How a seam hears and replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchbus._bus.bus import Bus
from torchbus._bus.listeners import Listeners
from torchbus._seams.patch import replace


class Ears:
    """The part of the bus that a seam needs.

    ``bus``: for what outlives the seam, such as an iterator that the loop holds. If other code has
    wrapped a function of the seam, the seam's function stays below when the seam is removed. It
    sends nothing from then on.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.hook: Any = bus.hook
        self._listeners: list[Listeners] = []

    def listeners(self, event: str) -> Listeners:
        """Return the functions of a hot event in calling order."""
        self._listeners.append(self.bus.listeners(event))
        return self._listeners[-1]

    def replace(
        self, owner: object, name: str, make: Callable[[Any], object], becomes_inert: bool = False
    ) -> Callable[[], None]:
        """Set ``owner.name`` to ``make(original)``. Return the function that undoes it."""
        return replace(owner, name, make, becomes_inert, self.be_deaf)

    def be_deaf(self) -> None:
        """Send nothing any more."""
        self.hook = _Nobody()
        for listeners in self._listeners:
            self.bus.release(listeners)


class _Nobody:
    """Answers every event as if nobody listened."""

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda **arguments: None


@dataclass(frozen=True)
class Patch:
    """A patch of torch: its place, the events that it emits, and how it is installed.

    ``install`` returns the function that removes the patch.
    """

    place: str
    events: tuple[str, ...]
    install: Callable[[Ears], Callable[[], None]]


def emits(place: str, *events: str) -> Callable[[Callable[[Ears], Callable[[], None]]], Patch]:
    """Make the decorated ``install`` function a ``Patch``."""
    return lambda install: Patch(place, events, install)
