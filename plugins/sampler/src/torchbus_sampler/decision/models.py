"""The models whose mode tells training from evaluation."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import hookimpl, inventory


class DecidingModels:
    """Those that an optimizer trains: a transform, or a loss made of modules, may stay in training mode for ever, and a teacher in eval mode."""

    def __init__(self) -> None:
        self._called: weakref.WeakSet[Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._adopted: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._trained: weakref.WeakSet[Module] = weakref.WeakSet()

    @hookimpl
    def model_found(self, model: Module) -> None:
        self._called.add(model)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None:
            self._adopted.update({id(parameter): parameter for parameter in parameters})
        else:
            self._optimizers.add(optimizer)
        self._trained = weakref.WeakSet()

    def now(self) -> list[Module]:
        """Without an optimizer those that were called, and before any was, all that there are."""
        if not self._trained and (parameters := self._parameters()):
            self._trained = weakref.WeakSet(inventory.models_of(parameters))
        deciding = list(self._trained) or list(self._called) or inventory.outermost(inventory.alive(Module))
        return [model for model in deciding if not inventory.is_internal(model)]

    def _parameters(self) -> list[Tensor]:
        """As the optimizers have them now: a strategy may have put parts of them in their place."""
        held = [parameter for optimizer in self._optimizers for group in optimizer.param_groups for parameter in group["params"]]
        return [*held, *self._adopted.values()]
