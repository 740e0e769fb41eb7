"""The optimizers of divided models: they hold the parts, and their ``state_dict`` is whole."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context

from torchbus_sharded.checks.agreement import Agreement
from torchbus_strategy import sharding
from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.checks.hyperparameters import Settings


class Optimizers:
    """The optimizers, in the same order on all ranks, because their states are gathered."""

    def __init__(self, session: Context, agreement: Agreement) -> None:
        self._session = session
        self._agreement = agreement
        self._local_steps = sharding.LocalSteps(session)
        self._known: list[weakref.ref[Optimizer]] = []

    def add(self, optimizer: Optimizer) -> None:
        if any(reference() is optimizer for reference in self._known):
            return
        self._known.append(weakref.ref(optimizer))
        self._local_steps.add(optimizer)
        stack = self._session.on_close
        stack.callback(optimizer.register_state_dict_post_hook(self._gather).remove)
        stack.callback(
            optimizer.register_load_state_dict_post_hook(sharding.divided_optimizer).remove
        )

    def add_holding(self, parameters: list[nn.Parameter]) -> None:
        """Add all optimizers that hold some of the parameters, in the order of the parameters."""
        place = {id(parameter): index for index, parameter in enumerate(parameters)}
        found = []
        for optimizer in objects.optimizers():
            held = [
                place[id(one)]
                for group in optimizer.param_groups
                for one in group["params"]
                if id(one) in place
            ]
            if held and self._session.captures(optimizer):
                found.append((min(held), optimizer))
        for _, optimizer in sorted(found, key=lambda pair: pair[0]):
            self.add(optimizer)

    def settings(self) -> Settings:
        """Hyperparameters of the optimizers that are alive."""
        numbered = [(number, reference()) for number, reference in enumerate(self._known)]
        return hyperparameters.of_numbered(
            [(number, optimizer) for number, optimizer in numbered if optimizer is not None]
        )

    def swap(self, replaced: Mapping[int, nn.Parameter]) -> None:
        for optimizer in [reference() for reference in self._known]:
            if optimizer is not None:
                sharding.swap(optimizer, replaced)

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, object]) -> dict[str, object]:
        """Give ``optimizer.state_dict()`` whole tensors, on all ranks. All of them call it."""
        if not self._session.gathers_states:
            return state_dict
        self._agreement.meet(f"the state_dict of {type(optimizer).__name__}")
        return sharding.whole_optimizer(state_dict)
