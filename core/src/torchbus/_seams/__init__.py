"""Seams: the places in torch where a session hears a loop. One module each.

A seam names the events that it sends. Its ``install(ears)`` returns the function that removes it.
Only seams with a listener are installed. ``Seams.close`` puts torch back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Protocol

from torchbus._bus.bus import Bus
from torchbus._compat.modules import forget_replaced
from torchbus._seams import backward, loader, save
from torchbus._seams.ears import Ears
from torchbus._seams.modules import calls, mode, model
from torchbus._seams.optimizers import clipping, optimizer, scheduler, skipping
from torchbus._seams.patch import replace
from torchbus._seams.undisturbed import undisturbed


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

    @undisturbed()
    def refresh(self) -> None:
        """Install exactly the seams that some plugin listens to now."""
        heard = [seam for seam in ALL if any(self._bus.heard(event) for event in seam.EVENTS)]
        self._remove([seam for seam, _ in self._installed if seam not in heard])
        there = {seam.PLACE for seam, _ in self._installed} | self._retired
        for seam in heard:
            if seam.PLACE not in there:
                self._installed.append((seam, seam.install(Ears(self._bus))))

    @undisturbed()
    def retire(self, event: str) -> None:
        """Remove for good the seam that sends an event."""
        retired = [seam for seam in ALL if event in seam.EVENTS]
        self._retired.update(seam.PLACE for seam in retired)
        self._remove(retired)

    @undisturbed()
    def replace(
        self, owner: object, name: str, make: Callable[[object], object], until: ExitStack
    ) -> None:
        """Set ``owner.name`` to ``make(original)``. ``until`` puts it back."""
        place = f"{getattr(owner, '__name__', owner)}.{name}"
        until.callback(self.note(place, replace(owner, name, make)))

    def note(self, place: str, undo: Callable[[], None]) -> Callable[[], None]:
        """List something else that a plugin has replaced. Return the function that puts it back."""
        self._replaced.append(place)

        def put_back() -> None:
            self._replaced.remove(place)
            undo()

        return put_back

    def places(self) -> list[str]:
        """Return the places that are heard, and what plugins have replaced."""
        return [seam.PLACE for seam, _ in self._installed] + self._replaced

    @undisturbed()
    def close(self) -> None:
        """Put torch back as it was."""
        self._remove(ALL)
        self._retired.clear()
        forget_replaced()

    def _remove(self, seams: Collection[Seam]) -> None:
        for entry in [entry for entry in reversed(self._installed) if entry[0] in seams]:
            self._installed.remove(entry)
            entry[1]()
