"""``s.toggle(optimizer)``: inside, only this optimizer's parameters require gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from torch import Tensor
from torch.optim import Optimizer


class Toggle:
    """Remembers ``requires_grad`` of each parameter before the outermost block. Blocks may nest."""

    def __init__(self) -> None:
        self._before: dict[int, bool] = {}

    @contextmanager
    def block(self, optimizer: Optimizer, all_optimizers: Iterable[Optimizer]) -> Iterator[None]:
        """Freeze the parameters of all other optimizers. At the end, undo that."""
        everything = {
            id(parameter): parameter for other in all_optimizers for parameter in parameters(other)
        }
        entry = {key: parameter.requires_grad for key, parameter in everything.items()}
        first = [key for key in entry if key not in self._before]
        self._before.update((key, entry[key]) for key in first)
        mine = {id(parameter) for parameter in parameters(optimizer)}
        try:
            for key, parameter in everything.items():
                parameter.requires_grad_(self._before[key] and key in mine)
            yield
        finally:
            for key, parameter in everything.items():
                parameter.requires_grad_(entry[key])
            for key in first:
                del self._before[key]


def parameters(optimizer: Optimizer) -> list[Tensor]:
    groups = optimizer.param_groups
    return list(
        groups[0]["params"] if len(groups) == 1 else chain(*[one["params"] for one in groups])
    )
