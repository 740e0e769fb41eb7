"""Unsynchronised gradients, made by backwards under ``s.no_sync()``, in a checkpoint."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor
from torchbus.plugin import Context

from torchbus_strategy.parameters.trained import TrainedParameters


class UnsynchronisedState(TypedDict, total=False):
    """The state in a checkpoint.

    ``who`` is the rank and the number of ranks. ``indices`` are those of the trained parameters.
    """

    who: list[int]
    indices: list[int]
    own: list[Tensor | None]
    mean: list[Tensor]


class Unsynchronised:
    """Saves this rank's gradients, and their mean for another number of ranks.

    ``local`` holds the ids of the parameters that have such gradients.
    """

    def __init__(self, session: Context, trained: TrainedParameters, local: set[int]) -> None:
        self._session = session
        self._trained = trained
        self._local = local

    def state_dict(self) -> UnsynchronisedState:
        """Return the unsynchronised gradients. All ranks call it, because it averages them.

        If the order is divided again between steps, the state is empty: a run that resumes gets the
        batches of an open window again.
        """
        parameters = self._trained.parameters
        world = self._session.world
        if not self._local or world.world_size == 1 or world.divides_anew:
            return {}
        indices = [
            index for index, parameter in enumerate(parameters) if id(parameter) in self._local
        ]
        mine = [
            None if (gradient := parameters[index].grad) is None else gradient.detach()
            for index in indices
        ]
        mean = [
            self._mean(gradient, parameters[index])
            for index, gradient in zip(indices, mine, strict=True)
        ]
        return {
            "who": [self._session.rank, self._session.world_size],
            "indices": indices,
            "own": mine,
            "mean": mean,
        }

    def _mean(self, gradient: Tensor | None, parameter: Tensor) -> Tensor:
        return self._session.reduce(
            torch.zeros_like(parameter.detach()) if gradient is None else gradient.to_dense()
        )

    @torch.no_grad()
    def load_state_dict(self, state: UnsynchronisedState) -> None:
        self._local.clear()
        if not state:
            return
        alike = state["who"] == [self._session.rank, self._session.world_size]
        for index, gradient in zip(
            state["indices"], state["own"] if alike else state["mean"], strict=True
        ):
            parameter = self._trained.parameters[index]
            parameter.grad = None if gradient is None else _like(gradient, parameter)
            self._local.add(id(parameter))


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    return gradient.to(parameter.device, parameter.dtype, copy=True)
