"""Installs and removes the patches of a session by the events that plugins listen to.

Only patches with a listener are installed. ``Seams.close`` restores torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from typing import Any

from torchbus.bus.registry import Bus
from torchbus.compat.torch_names import forget_replaced
from torchbus.patches.backward import backward_calls
from torchbus.patches.loaders import data_loaders
from torchbus.patches.modules import every_forward, first_forward, train_mode
from torchbus.patches.optimizers import optimizer_parameters, optimizer_steps, plateau_step
from torchbus.patches.other_calls import clipping, torch_save
from torchbus.patches.patching import EventEmitter, Patch, replace, undisturbed
from torchbus.patches.skipping import clearing_gradients, scheduler_steps, step_methods

ALL: tuple[Patch, ...] = (
    backward_calls,
    data_loaders,
    first_forward,
    every_forward,
    train_mode,
    optimizer_parameters,
    clearing_gradients,
    clipping,
    step_methods,
    optimizer_steps,
    plateau_step,
    scheduler_steps,
    torch_save,
)


Replacement = tuple[object, str, Callable[[Any], object]]
"""An owner, the name of its attribute, and the function that makes the new value from the old."""


class Seams:
    """The installed patches of one session."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._installed: list[tuple[Patch, EventEmitter, Callable[[], None]]] = []
        self._retired: set[str] = set()
        self._replaced: list[str] = []

    @undisturbed()
    def refresh(self) -> None:
        """Install exactly the patches whose events some plugin listens to."""
        listened = self._bus.listened()
        wanted = [seam for seam in ALL if listened.intersection(seam.events)]
        self._remove([seam for seam, *_ in self._installed if seam not in wanted])
        there = {seam.place for seam, *_ in self._installed} | self._retired
        for seam in wanted:
            if seam.place not in there:
                emitter = EventEmitter(self._bus)
                self._installed.append((seam, emitter, seam.install(emitter)))

    @undisturbed()
    def retire(self, event: str) -> None:
        """Remove the patch that sends an event, for the rest of the session."""
        retired = [seam for seam in ALL if event in seam.events]
        self._retired.update(seam.place for seam in retired)
        self._remove(retired)

    @undisturbed()
    def replace(self, wanted: Iterable[Replacement], until: ExitStack) -> None:
        """Set each ``owner.name`` to ``make(original)``. Closing ``until`` restores them."""
        for owner, name, make in wanted:
            place = f"{getattr(owner, '__name__', owner)}.{name}"
            until.callback(self.note(place, replace(owner, name, make)))

    def note(self, place: str, undo: Callable[[], None]) -> Callable[[], None]:
        """Add a plugin's replacement to ``places``. Return the function that undoes it."""
        self._replaced.append(place)

        def put_back() -> None:
            self._replaced.remove(place)
            undo()

        return put_back

    def places(self) -> list[str]:
        """Return the patched functions, and the replacements by plugins."""
        return [seam.place for seam, *_ in self._installed] + self._replaced

    @undisturbed()
    def close(self) -> None:
        """Restore torch."""
        self._remove(ALL)
        self._retired.clear()
        forget_replaced()

    def _remove(self, seams: Collection[Patch]) -> None:
        for entry in [entry for entry in reversed(self._installed) if entry[0] in seams]:
            _, emitter, undo = entry
            self._installed.remove(entry)
            emitter.disconnect()
            undo()
