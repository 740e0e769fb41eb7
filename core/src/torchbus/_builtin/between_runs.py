"""Between two training runs nothing belongs to a rank: while no trained model is alive, all ranks draw the same random numbers."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus._session import inventory
from torchbus.events import hookimpl

if TYPE_CHECKING:
    from torchbus._session.context import Context


class RestBetweenRuns:
    """Hears of the models that optimizers train, and of the end of the last one.

    A model that only the garbage collector can free (it is part of a cycle) counts as alive for good, since its end does not come at
    the same place of the loop on every rank.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._trained: dict[int, weakref.ref[Module]] = {}
        self._collecting = False

    @hookimpl
    def session_start(self, session: Context) -> None:
        gc.callbacks.append(self._collector_runs)
        session.on_close.callback(gc.callbacks.remove, self._collector_runs)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is not None and self._session.captures(optimizer):
            for model in inventory.models_of(parameters):
                self._trained.setdefault(id(model), weakref.ref(model, self._ended))

    def _ended(self, reference: weakref.ref[Module]) -> None:
        if self._collecting or not self._session.is_inside:
            return
        self._trained = {key: model for key, model in self._trained.items() if model is not reference}
        if not self._trained:
            self._session.random.rest()

    def _collector_runs(self, phase: str, info: dict[str, Any]) -> None:
        self._collecting = phase == "start"
