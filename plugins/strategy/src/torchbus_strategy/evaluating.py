"""Detects which passes over loaders evaluate, and which train."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.plugin import Context, hookimpl, users_frame

from torchbus_strategy.user_code import Place, place_of


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
        """Return the trained models, or else the called models, or else all models."""
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
        """Note a loader that has trained: a resumed run skips batches that have fed a backward."""
        if torch.is_grad_enabled():
            self._trained.add(loader)

    @hookimpl
    def after_backward(self) -> None:
        self._trained |= self._asked
        self._asked.clear()


class TrainingPasses:
    """Recognises the passes that train, among those that begin.

    ``trained`` are the loaders that have fed a backward. A loop may make a loader for each epoch.
    So a new loader trains if its pass begins in the same line as a pass over a trained loader.
    """

    def __init__(self) -> None:
        self.trained, self._models = TrainedLoaders(), DecidingModels()
        self._begun: weakref.WeakKeyDictionary[DataLoader[object], Place] = (
            weakref.WeakKeyDictionary()
        )
        self._lines: set[Place] = set()
        self._evaluating: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()

    def join(self, session: Context, name: str) -> None:
        """Listen to the loop from now on, for the plugin of this name."""
        session.bus.register(self.trained, f"{name}.trained")
        session.bus.register(self._models, f"{name}.models")
        session.bus.register(self, f"{name}.passes")

    def begins(self, loader: DataLoader[object]) -> bool:
        """Note that a pass begins, and return whether it trains, as far as is known."""
        trains = not without_gradients() and self._looks_like_training(loader)
        if loader in self.trained and not trains:
            self._evaluating.add(loader)
        else:
            self._evaluating.discard(loader)
        return trains

    def skips(self, loader: DataLoader[object]) -> None:
        """Note that the pass gets no batch, so the next one is as good as the loader's first."""
        self._begun.pop(loader, None)

    def _looks_like_training(self, loader: DataLoader[object]) -> bool:
        has_trained, is_new = loader in self.trained, loader not in self._begun
        line = self._begun[loader] = place_of(users_frame()[0])
        if has_trained and line in self._lines:
            return True
        may_train = has_trained or (is_new and line in self._lines)
        return may_train and not in_eval_mode(self._models.now())

    def trains(self, loader: DataLoader[object]) -> bool:
        """Whether the loader has fed a backward, and its latest pass does not evaluate."""
        return loader in self.trained and loader not in self._evaluating

    def ends(self, loader: DataLoader[object]) -> bool:
        """Note that the loader's latest pass ends, and return whether it has trained."""
        has_trained = self.trains(loader)
        self._evaluating.discard(loader)  # the pass around it continues to train
        return has_trained

    @hookimpl(trylast=True)
    def after_backward(self) -> None:
        for loader, line in self._begun.items():
            if line not in self._lines and loader in self.trained:
                self._lines.add(line)
