"""Optimizers of sharded models, which hold shards; their ``state_dict`` is made whole."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context

from torchbus_sharded.agreement import Agreement
from torchbus_strategy import sharding
from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.checks.hyperparameters import Settings

T = TypeVar("T")


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def added_methods(optimizer: Optimizer) -> list[str]:
    """Return the public methods that the optimizer's class or its bases add to Optimizer."""
    names = dict.fromkeys(
        name for cls in type(optimizer).__mro__ if issubclass(cls, Optimizer) for name in vars(cls)
    )
    return [
        name
        for name in names
        if not name.startswith("_")
        and not hasattr(Optimizer, name)
        and inspect.isfunction(inspect.getattr_static(optimizer, name))
    ]


def surround(optimizer: Optimizer, before: Callable[[str], None]) -> Callable[[], None]:
    """Call ``before(name)`` before each added method. Returns a function that undoes this."""
    attributes = vars(optimizer)
    made = {
        name: _after(before, name, getattr(optimizer, name)) for name in added_methods(optimizer)
    }
    attributes.update(made)

    def undo() -> None:
        for name, method in made.items():
            if attributes.get(name) is method:
                del attributes[name]

    return undo


def _after(before: Callable[[str], None], name: str, method: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> T:
        before(name)
        return method(*args, **kwargs)

    return call


class ShardedOptimizers:
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
            held = [place[id(one)] for one in parameters_of(optimizer) if id(one) in place]
            if held and self._session.captures(optimizer):
                found.append((min(held), optimizer))
        for _, optimizer in sorted(found, key=lambda pair: pair[0]):
            self.add(optimizer)

    def settings(self) -> Settings:
        """Return the hyperparameters of the optimizers that are alive."""
        numbered = [(number, reference()) for number, reference in enumerate(self._known)]
        return hyperparameters.of_numbered(
            [(number, optimizer) for number, optimizer in numbered if optimizer is not None]
        )

    def swap(self, replaced: Mapping[int, nn.Parameter]) -> None:
        for optimizer in [reference() for reference in self._known]:
            if optimizer is not None:
                sharding.swap(optimizer, replaced)

    def alive_on_all(self) -> list[Optimizer]:
        """Return the optimizers that are alive on every rank. All ranks call it."""
        return sharding.alive_on_all(self._session, self._known)

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, object]) -> dict[str, object]:
        """Make ``optimizer.state_dict()`` return whole tensors. All ranks must call it."""
        if not self._session.gathers_states:
            return state_dict
        self._agreement.sync(f"the state_dict of {type(optimizer).__name__}")
        return sharding.whole_optimizer(state_dict)
