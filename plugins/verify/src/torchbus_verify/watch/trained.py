"""The parameters that are trained, and what the loop calls them."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects

from torchbus_verify.record.names import Names


class Trained:
    """Hears of optimizers. It looks for models only when it is asked, once in a checked step."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._others: list[weakref.ref[Tensor]] = []
        self._names = Names()

    def add(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """``optimizer`` is None for parameters that were adopted without one."""
        if optimizer is None:
            self._others += [weakref.ref(one) for one in parameters]
        elif all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def named(self) -> dict[str, Tensor]:
        """Those of all optimizers, by name. All ranks get the same names."""
        found: dict[str, Tensor] = {}
        for number, known in enumerate(self._optimizers):
            optimizer = known()
            if optimizer is not None:
                found |= self._names.parameters(optimizer, number)
        held = {id(one) for one in found.values()}
        others = [one for one in (known() for known in self._others) if one is not None]
        found |= {f"adopted.{i}": one for i, one in enumerate(others) if id(one) not in held}
        return {name: one for name, one in found.items() if one.requires_grad}

    def modules(self) -> list[Module]:
        """The models that own them and all their parts, in the same order on all ranks."""
        roots = objects.models_of(self.named().values())
        return [module for root in roots for module in root.modules()]
