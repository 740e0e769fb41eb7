"""Models that ranks step by themselves, each by its own optimizer's state, in a checkpoint."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchbus_compress.averaging import Averager


class OwnModels:
    """The averager of each optimizer, and what this rank has between two averages, by the order in which optimizers were made."""

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
        """All ranks call it alike."""
        self.add(optimizer)
        if optimizer not in self._averagers:
            self._averagers[optimizer] = self._make(_parameters(optimizer))
            self._averagers[optimizer].begin()
        self._averagers[optimizer].after_step()
        self.stepped = True

    def agree(self) -> None:
        """All ranks have one model; they call it alike."""
        if self.stepped:
            self.stepped = False
            for averager in self._averagers.values():
                averager.agree()

    def state_dict(self) -> dict[str, Any]:
        return {"stepped": self.stepped, "optimizers": [self._of(optimizer) for optimizer in self._alive()]}

    def _of(self, optimizer: Optimizer) -> dict[str, Any]:
        averager = self._averagers.get(optimizer)
        parameters = [parameter.detach() for parameter in _parameters(optimizer)]
        return {"parameters": parameters, "state": optimizer.state_dict(), "averager": None if averager is None else averager.state()}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """What this rank has written."""
        self.stepped = saved["stepped"]
        self._averagers.clear()
        for optimizer, own in zip(self._alive(), saved["optimizers"], strict=True):
            for parameter, value in zip(_parameters(optimizer), own["parameters"], strict=True):
                parameter.copy_(value)
            optimizer.load_state_dict(own["state"])
            if own["averager"] is not None:
                averager = self._averagers[optimizer] = self._make(_parameters(optimizer))
                averager.restore(own["averager"])

    def _alive(self) -> list[Optimizer]:
        return [optimizer for optimizer in (known() for known in self._optimizers) if optimizer is not None]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
