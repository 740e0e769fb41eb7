"""Gradients that the loop has assigned itself, such as those of ``torch.autograd.grad``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer


@dataclass
class Witness:
    """A parameter, and the gradient that the last synchronised backward has ``left``."""

    parameter: Tensor
    optimizer: weakref.ref[Optimizer]
    left: Tensor | None = None


class Assigned:
    """Notices them by the smallest parameter of each optimizer.

    Its gradient costs little to keep, and is one object until the loop sets another.
    """

    def __init__(self) -> None:
        # by the optimizer's id: to list a WeakKeyDictionary in every step takes 10 us
        self._witnesses: dict[int, Witness] = {}

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if trained:
            key = id(optimizer)
            gone = weakref.ref(optimizer, functools.partial(self._witnesses.pop, key))
            self._witnesses[key] = Witness(min(trained, key=Tensor.numel), gone)

    def synchronised(self) -> None:
        """The gradients of this moment are common to all ranks."""
        for witness in list(self._witnesses.values()):
            witness.left = witness.parameter.grad

    def found(self, optimizer: Optimizer) -> bool:
        """Whether the loop has assigned the optimizer's gradients since then."""
        witness = self._witnesses.get(id(optimizer))
        return (
            witness is not None
            and witness.parameter.grad is not None
            and witness.parameter.grad is not witness.left
        )
