"""The models whose mode distinguishes training from evaluation."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import hookimpl


class DecidingModels:
    """The models that an optimizer trains.

    Other modules do not count: a transform or a loss may always be in training mode, and a teacher
    always in eval mode.
    """

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
        """Return them. Without an optimizer, return the called models, or else all models."""
        if not self._trained and (parameters := self._parameters()):
            self._trained = weakref.WeakSet(objects.models_of(parameters))
        deciding = (
            list(self._trained) or list(self._called) or objects.outermost(objects.alive(Module))
        )
        return [model for model in deciding if not objects.is_internal(model)]

    def _parameters(self) -> list[Tensor]:
        """Return what the optimizers hold now: a strategy may have replaced it by shards."""
        held = [
            parameter
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        return [*held, *self._adopted.values()]
