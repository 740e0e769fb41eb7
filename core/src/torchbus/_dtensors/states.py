"""States of divided models and optimizers: whole where the loop sees them, divided where held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus._dtensors.values import like, whole
from torchbus._session.context import Context

Entry = dict[str, Any]


def whole_states(session: Context) -> Callable[..., None]:
    """A hook that gives ``model.state_dict()`` whole tensors, on all ranks. All of them call it.

    Each module gets it, because the script may ask a part of the model by itself. Inside of
    ``session.in_parts()``, the parts stay as they are.
    """

    def gather(module: Module, state: Entry, prefix: str, _: object) -> None:
        for name, _parameter in _own(module) if session.gathers_states else ():
            if prefix + name in state:
                state[prefix + name] = whole(state[prefix + name])

    return gather


@torch.no_grad()
def divided_states(module: Module, state: Entry, prefix: str, *_: object) -> None:
    """Let ``model.load_state_dict`` take whole tensors, the same on all ranks."""
    for name, mine in _own(module):
        value = state.get(prefix + name)
        if isinstance(mine, DTensor) and isinstance(value, Tensor):
            state[prefix + name] = like(value.to(mine.device), mine)


def whole_optimizer(state: Entry) -> Entry:
    """An optimizer's state_dict with whole tensors. All ranks call it."""
    entries = state["state"].items()
    return {**state, "state": {key: _changed(entry, whole) for key, entry in entries}}


def divided_optimizer(optimizer: Optimizer) -> None:
    """Divide what ``optimizer.load_state_dict`` has read: whole tensors, the same on all ranks."""
    for parameter, entry in optimizer.state.items():
        if isinstance(parameter, Tensor):
            optimizer.state[parameter] = _placed(entry, parameter)


def swap(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> None:
    """Replace the optimizer's parameters, and move their state.

    ``replaced`` holds new parameters by the ``id`` of the old ones. These must still be alive, if
    without their values.
    """
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(id(one), one) for one in group["params"]]
    for old in [one for one in optimizer.state if id(one) in replaced]:
        new = replaced[id(old)]
        optimizer.state[new] = _placed(optimizer.state.pop(old), new)


def _own(module: Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(recurse=False, remove_duplicate=False))


def _placed(entry: object, parameter: Tensor) -> Any:
    return _changed(entry, lambda value: like(value, parameter))


def _changed(entry: object, change: Callable[[object], object]) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: change(value) for key, value in entry.items()}
