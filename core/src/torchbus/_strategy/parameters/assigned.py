"""Gradients that the loop has assigned itself, such as those of ``torch.autograd.grad``."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer


@dataclass
class Witness:
    """A parameter, and the gradient that the last synchronised backward has ``left``."""

    parameter: Tensor
    left: Tensor | None = None


class Assigned:
    """Notices them by the smallest parameter of each optimizer.

    Its gradient costs little to keep, and is one object until the loop sets another.
    """

    def __init__(self) -> None:
        self._witnesses: weakref.WeakKeyDictionary[Optimizer, Witness] = weakref.WeakKeyDictionary()

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if trained:
            self._witnesses[optimizer] = Witness(min(trained, key=Tensor.numel))

    def synchronised(self) -> None:
        """The gradients of this moment are common to all ranks."""
        for witness in self._witnesses.values():
            witness.left = witness.parameter.grad

    def found(self, optimizer: Optimizer) -> bool:
        """Whether the loop has assigned the optimizer's gradients since then."""
        witness = self._witnesses.get(optimizer)
        return (
            witness is not None
            and witness.parameter.grad is not None
            and witness.parameter.grad is not witness.left
        )
