"""Tells of each optimizer once it is complete, if a plugin asks for that."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from torchbus._bus.markers import hookimpl

if TYPE_CHECKING:
    from torchbus._session.context import Context

EVENT = "optimizer_ready"


def on_demand(session: Context) -> None:
    """Register ``NewOptimizers`` as soon as somebody listens to ``optimizer_ready``."""
    bus, waits = session.bus, NewOptimizers(session)

    def look() -> None:
        if bus.heard(EVENT):
            bus.on_change.remove(look)
            bus.register(waits)

    bus.on_change.append(look)
    look()


class NewOptimizers:
    """Waits with each new optimizer for its first use."""

    def __init__(self, session: Context) -> None:
        self._bus = session.bus
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._waiting: list[weakref.ref[Optimizer]] = []
        self._first_use = FirstUse(self)

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or optimizer in self._known:
            return
        self._known.add(optimizer)
        self._waiting.append(weakref.ref(optimizer))
        if len(self._waiting) == 1:
            self._bus.register(self._first_use)

    def tell(self) -> None:
        """Send the event for all that wait."""
        self._bus.unregister(self._first_use)
        waiting, self._waiting = self._waiting, []
        for optimizer in (reference() for reference in waiting):
            if optimizer is not None:
                self._bus.hook.optimizer_ready(optimizer=optimizer)


class FirstUse:
    """Hears what a loop does after it has made its optimizers, before other plugins do.

    Registered only while an optimizer waits, so that a step costs nothing.
    """

    def __init__(self, new: NewOptimizers) -> None:
        self._optimizers = new

    @hookimpl(tryfirst=True)
    def loader_start(self) -> None:
        self._optimizers.tell()

    @hookimpl(tryfirst=True)
    def model_found(self, calling: bool) -> None:
        if calling:
            self._optimizers.tell()

    @hookimpl(tryfirst=True)
    def before_zero_grad(self) -> None:
        self._optimizers.tell()

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        self._optimizers.tell()

    @hookimpl(tryfirst=True)
    def step_called(self) -> None:
        self._optimizers.tell()
