"""Detects passes over loaders that evaluate."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.plugin import hookimpl


def without_gradients() -> str:
    """Return why a pass that begins now can't train, or "" if it can."""
    if torch.is_inference_mode_enabled():
        return "iterated under inference_mode"
    return "" if torch.is_grad_enabled() else "iterated under no_grad"


def in_eval_mode(models: Iterable[Module]) -> str:
    """Return why this looks like evaluation: every model is in eval mode. "" if one is not."""
    trained = [model for model in models if any(True for _ in model.parameters())]
    if trained and not any(model.training for model in trained):
        return "iterated while the model is in eval mode"
    return ""


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


class TrainedLoaders:
    """The loaders that have fed a backward: a pass over them was asked for a batch before it."""

    def __init__(self) -> None:
        self._asked: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
        self._trained: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    def __contains__(self, loader: DataLoader[object]) -> bool:
        return loader in self._trained

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object]) -> None:
        if torch.is_grad_enabled():
            self._asked.add(loader)

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        """Forget the loader: an evaluation that ends before the backward has not fed it."""
        self._asked.discard(loader)

    @hookimpl
    def batches_skipped(self, loader: DataLoader[object]) -> None:
        """A run that resumes skips the batches that have fed a backward before."""
        if torch.is_grad_enabled():
            self._trained.add(loader)

    @hookimpl
    def after_backward(self) -> None:
        self._trained |= self._asked
        self._asked.clear()
