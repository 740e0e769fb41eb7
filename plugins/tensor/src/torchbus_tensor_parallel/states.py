"""States of divided models and optimizers: whole where the loop sees them, divided where held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus_tensor_parallel._compat import parameters
from torchbus_tensor_parallel.dtensor.random import like


def whole_state(module: Module, state: dict[str, object], prefix: str, _: object) -> None:
    """Give ``model.state_dict()`` whole tensors, on all ranks. All of them call it."""
    for name in parameters(module):
        if prefix + name in state:
            state[prefix + name] = whole(state[prefix + name])


@torch.no_grad()
def divided_state(module: Module, state: dict[str, object], prefix: str, *_: object) -> None:
    """Let ``model.load_state_dict`` take whole tensors, the same on all ranks."""
    for name, mine in parameters(module).items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and isinstance(mine, DTensor) and value.shape == mine.shape:
            state[prefix + name] = as_held(value.to(mine.device), mine)


def whole_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Give ``optimizer.state_dict()`` whole tensors, on all ranks. All of them call it."""
    entries = state["state"].items()
    return {**state, "state": {key: _changed(entry, whole) for key, entry in entries}}


def divided_optimizer(optimizer: Optimizer) -> None:
    """Divide what ``optimizer.load_state_dict`` has read: whole tensors, the same on all ranks."""
    for parameter, entry in optimizer.state.items():
        optimizer.state[parameter] = _placed(entry, parameter)


def swap(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> None:
    """Replace the optimizer's parameters, by the ``id`` of the old ones, and move their state."""
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(id(one), one) for one in group["params"]]
    for old in [one for one in optimizer.state if id(one) in replaced]:
        new = replaced[id(old)]
        optimizer.state[new] = _placed(optimizer.state.pop(old), new)


@torch.no_grad()
def as_held(value: Tensor, parameter: Tensor) -> Tensor:
    """Divide a tensor, or make it whole, as its parameter is, if they have the same shape."""
    if not isinstance(parameter, DTensor):
        made: Tensor = whole(value)
        return made
    if isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    return like(value, parameter)


def whole(value: Any) -> Any:
    """The whole of a DTensor: all ranks of a tensor group call it. Anything else as it is."""
    if not isinstance(value, DTensor):
        return value
    own = value.detach()
    assert isinstance(own, DTensor)
    return own.full_tensor()


def _placed(entry: Any, parameter: Tensor) -> Any:
    return _changed(
        entry, lambda value: as_held(value, parameter) if isinstance(value, Tensor) else value
    )


def _changed(entry: Any, change: Any) -> Any:
    return {key: change(value) for key, value in entry.items()} if type(entry) is dict else entry
