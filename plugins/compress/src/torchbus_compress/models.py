"""Models that each rank steps independently, with its own optimizer state, and their checkpoint."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchbus_compress.averaging import Averager, State


class LocalModel(TypedDict):
    """One optimizer's parameters, state and averager, as this rank has them."""

    parameters: list[Tensor]
    state: dict[str, Any]
    averager: State | None


class Saved(TypedDict):
    stepped: bool
    optimizers: list[LocalModel]


class LocalModels:
    """The averager of each optimizer, and what this rank has between two averages.

    A checkpoint has them in the order in which the optimizers were made.
    """

    def __init__(self, make: Callable[[list[Tensor]], Averager]) -> None:
        self._make = make
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._averagers: dict[Optimizer, Averager] = {}
        self.stepped = False

    def add(self, optimizer: Optimizer) -> None:
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def close(self) -> None:
        self._averagers.clear()

    def after_step(self, optimizer: Optimizer) -> None:
        """Average the optimizer's parameters. All ranks call it."""
        self.add(optimizer)
        if optimizer not in self._averagers:
            self._averagers[optimizer] = self._make(_parameters(optimizer))
            self._averagers[optimizer].begin()
        self._averagers[optimizer].after_step()
        self.stepped = True

    def agree(self) -> None:
        """Give all ranks the same model. All ranks call it."""
        if self.stepped:
            self.stepped = False
            for averager in self._averagers.values():
                averager.agree()

    def state_dict(self) -> Saved:
        return {
            "stepped": self.stepped,
            "optimizers": [self._of(optimizer) for optimizer in self._alive()],
        }

    def _of(self, optimizer: Optimizer) -> LocalModel:
        averager = self._averagers.get(optimizer)
        parameters = [parameter.detach() for parameter in _parameters(optimizer)]
        return {
            "parameters": parameters,
            "state": optimizer.state_dict(),
            "averager": None if averager is None else averager.state(),
        }

    @torch.no_grad()
    def load_state_dict(self, saved: Saved) -> None:
        """Load what this rank has written."""
        self.stepped = saved["stepped"]
        self._averagers.clear()
        for optimizer, mine in zip(self._alive(), saved["optimizers"], strict=True):
            for parameter, value in zip(_parameters(optimizer), mine["parameters"], strict=True):
                parameter.copy_(value)
            optimizer.load_state_dict(mine["state"])
            if mine["averager"] is not None:
                averager = self._averagers[optimizer] = self._make(_parameters(optimizer))
                averager.restore(mine["averager"])

    def _alive(self) -> list[Optimizer]:
        return [
            optimizer
            for optimizer in (known() for known in self._optimizers)
            if optimizer is not None
        ]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
