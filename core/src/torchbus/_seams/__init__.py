"""Seams: the places in torch where a loop can be heard. One module each.

A seam names the events that it fires and has an ``install(ears)`` that returns the function which removes it.
Only seams with a listener are installed; ``Seams.close`` puts torch back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torchbus._bus.bus import Bus
from torchbus._seams import backward, loader, save
from torchbus._seams.ears import Ears
from torchbus._seams.modules import calls, mode, model
from torchbus._seams.optimizers import clipping, optimizer, scheduler, skipping
from torchbus._seams.patch import replace


class Seam(Protocol):
    """What each module of this package offers."""

    PLACE: str
    EVENTS: tuple[str, ...]

    def install(self, ears: Ears) -> Callable[[], None]: ...


ALL: tuple[Seam, ...] = (
    backward,  # type: ignore[assignment]
    loader,
    model,
    calls,
    mode,
    optimizer.parameters,
    skipping.zero_grad,
    clipping,
    skipping.step,
    optimizer.step,
    scheduler,
    skipping.scheduler,
    save,
)


class Seams:
    """The installed seams of one session."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._installed: list[tuple[Seam, Callable[[], None]]] = []
        self._retired: set[str] = set()
        self._replaced: list[str] = []

    def refresh(self) -> None:
        """Install exactly the seams that somebody listens to, with listeners compiled anew."""
        self._remove_all()
        for seam in ALL:
            if any(self._bus.heard(event) for event in seam.EVENTS) and seam.PLACE not in self._retired:
                self._installed.append((seam, seam.install(Ears(self._bus))))

    def retire(self, event: str) -> None:
        """Remove for good the seam that fires an event."""
        retired = {seam.PLACE for seam in ALL if event in seam.EVENTS}
        self._retired |= retired
        for entry in [entry for entry in self._installed if entry[0].PLACE in retired]:
            self._installed.remove(entry)
            entry[1]()

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
        """Set ``owner.name`` to ``make(original)``; returns what puts it back."""
        return self.note(f"{getattr(owner, '__name__', owner)}.{name}", replace(owner, name, make))

    def note(self, place: str, undo: Callable[[], None]) -> Callable[[], None]:
        """Something else that a plugin has replaced; returns what puts it back."""
        self._replaced.append(place)

        def put_back() -> None:
            self._replaced.remove(place)
            undo()

        return put_back

    def places(self) -> list[str]:
        """The places that are being heard, and what plugins have replaced."""
        return [seam.PLACE for seam, _ in self._installed] + self._replaced

    def close(self) -> None:
        """Put torch back as it was."""
        self._remove_all()
        self._retired.clear()

    def _remove_all(self) -> None:
        while self._installed:
            self._installed.pop()[1]()
