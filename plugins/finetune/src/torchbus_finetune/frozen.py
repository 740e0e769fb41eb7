"""The models of a loop, and which of their modules are frozen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Module, Parameter

from torchbus_finetune import names
from torchbus_finetune.schedule import Entry, Schedule


class FrozenModels:
    """Sets ``requires_grad`` of what the schedule names, and keeps the statistics of norm layers.

    Args:
        schedule: what is frozen until when.
        keeps_statistics: whether frozen layers with running statistics are in eval mode.
    """

    def __init__(self, schedule: Schedule, keeps_statistics: bool) -> None:
        self._schedule = schedule
        self._keeps_statistics = keeps_statistics
        self._waiting: WeakKeyDictionary[Module, Schedule] = WeakKeyDictionary()
        self.next_step = math.inf
        """The number of real steps after which a module is to be unfrozen."""

    @property
    def models(self) -> list[Module]:
        """The models, in the order in which they were found."""
        return list(self._waiting)

    def named(self, model: Module) -> dict[Entry, dict[str, Parameter]]:
        """What each entry names in a model, frozen now or not."""
        return names.parameters(model, self._schedule)

    def have(self, parameters: Iterable[Tensor]) -> bool:
        """Whether all of these parameters belong to models that are known."""
        known = {id(one) for model in self._waiting for one in model.parameters()}
        return all(id(one) in known for one in parameters)

    def put(self, model: Module, steps: int, epoch: int) -> None:
        """Let a model be as it is to be after so many real steps, in this epoch."""
        self._waiting[model] = tuple(one for one in self._schedule if not one.is_due(steps, epoch))
        for entry, parameters in self.named(model).items():
            for parameter in parameters.values():
                parameter.requires_grad_(entry not in self._waiting[model])
        self.keep_statistics(model)
        self._plan()

    def unfreeze(self, model: Module, steps: int, epoch: int) -> dict[Entry, list[Parameter]]:
        """Unfreeze what is due, and return it."""
        due = [one for one in self._waiting[model] if one.is_due(steps, epoch)]
        if not due:
            return {}
        self._waiting[model] = tuple(one for one in self._waiting[model] if one not in due)
        named, norms = self.named(model), self._norms(model)
        for entry in due:
            for parameter in named[entry].values():
                parameter.requires_grad_(True)
            for norm in norms[entry]:
                norm.training = model.training
        self._plan()
        return {entry: list(named[entry].values()) for entry in due}

    def keep_statistics(self, model: Module) -> None:
        """Put the norm layers that are frozen in eval mode."""
        norms = self._norms(model)
        for entry in self._waiting[model]:
            for norm in norms[entry]:
                norm.training = False

    def _norms(self, model: Module) -> dict[Entry, list[Module]]:
        if not self._keeps_statistics:
            return {entry: [] for entry in self._schedule}
        return names.norms(model, self._schedule)

    def _plan(self) -> None:
        steps = [one.step for waiting in self._waiting.values() for one in waiting]
        self.next_step = min((one for one in steps if one is not None), default=math.inf)
