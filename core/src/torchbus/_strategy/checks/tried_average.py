"""A strategy's ``average`` is tried in the first backward, on numbers whose mean is known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchbus._ranks.world import DataPlace
from torchbus.errors import PluginError

RETURNED = (
    "{}.average returned a {}: it must replace each tensor by its mean over ranks, in place"
    " (tensor.copy_(mean)), and return nothing"
)
WRONG = (
    "{}.average made {:g} of the numbers 0 to {} of the ranks, whose mean is {:g}: it must replace"
    " each tensor, small ones too, by its mean over ranks, in place and in the tensor's own dtype"
)


class TriedAverage:
    """``average`` of the strategy ``name``. ``data``: which part of the data this rank has."""

    def __init__(
        self, average: Callable[[list[Tensor]], object], name: str, data: DataPlace
    ) -> None:
        self._average, self._name, self._data = average, name, data
        self._is_tried = False

    def __call__(self, tensors: list[Tensor]) -> None:
        """All ranks call it."""
        own = [] if self._is_tried else [torch.full_like(tensors[0][:1], self._data.part)]
        returned = self._average([*tensors, *own])
        if returned is not None:
            raise PluginError(RETURNED.format(self._name, type(returned).__name__))
        for number in own:
            self._check(float(number))
        self._is_tried = True

    def _check(self, found: float) -> None:
        last = self._data.parts - 1
        if abs(found - last / 2) > 1e-3 * (last + 1):
            raise PluginError(WRONG.format(self._name, found, last, last / 2))
