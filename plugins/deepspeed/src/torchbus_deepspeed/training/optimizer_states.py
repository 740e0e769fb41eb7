"""``optimizer.state_dict()`` is whole, in torch's layout; ``load_state_dict`` takes such a one."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from torchbus_deepspeed.engine.engine import Engine
from torchbus_deepspeed.engine.held import Held
from torchbus_deepspeed.engine.shadow import parameters_of
from torchbus_deepspeed.engine.states import Entry, put_states, whole_states


def hook(engines: Held, optimizer: Optimizer) -> None:
    """Until the end of the session. All ranks call ``state_dict`` and ``load_state_dict`` alike."""

    def whole(optimizer: Optimizer, state_dict: dict[str, object]) -> dict[str, object] | None:
        return _whole(engines, optimizer, state_dict)

    def divide(optimizer: Optimizer, state_dict: dict[str, object]) -> dict[str, object] | None:
        return _divide(engines, optimizer, state_dict)

    stack = engines.session.on_close
    stack.callback(optimizer.register_state_dict_post_hook(whole).remove)
    stack.callback(optimizer.register_load_state_dict_pre_hook(divide).remove)


def _whole(
    engines: Held, optimizer: Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any] | None:
    held = engines.of(optimizer)
    if not held:
        return None
    found: dict[int, Entry] = {}
    for each in held:
        found |= whole_states(each, each.parameters, gathering(engines))
    numbered = enumerate(parameters_of(optimizer))
    state = {number: found[id(one)] for number, one in numbered if id(one) in found}
    return {**state_dict, "state": state}


def gathering(engines: Held) -> Any:
    """How the parts of all ranks come together."""

    def gather(flat: torch.Tensor) -> list[torch.Tensor]:
        job = engines.session.job
        assert job is not None
        job.wait_in("state_dict")
        found = engines.session.all_gather(flat)
        job.go_on()
        return found

    return gather


def _divide(
    engines: Held, optimizer: Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any] | None:
    """Put the states into the parts, and let torch load the rest.

    torch itself would round them to the dtype of the parameters.
    """
    held = engines.of(optimizer)
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    own = parameters_of(optimizer)
    if not held or len(saved) != len(own):
        return None
    entries = {
        id(one): state_dict["state"].get(number, {}) for one, number in zip(own, saved, strict=True)
    }
    for each in held:
        each.shadow.state.clear()
        put_states(each, entries)
    return {**state_dict, "state": {}}


def give_back(engines: Held, engine: Engine) -> None:
    """Leave the loop's optimizer whole states at the end of the block. All ranks call it."""
    optimizer = engine.optimizer
    if optimizer is None:
        return
    found = whole_states(engine, engine.parameters, gathering(engines))
    for parameter in engine.parameters:
        if id(parameter) in found:
            optimizer.state[parameter] = found[id(parameter)]
