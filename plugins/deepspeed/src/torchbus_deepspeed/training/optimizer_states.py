"""Makes ``optimizer.state_dict()`` and ``load_state_dict`` use whole states in torch's layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Unsupported, hookimpl

from torchbus_deepspeed.engine.engine import Engine, Held
from torchbus_deepspeed.engine.shadow import parameters_of
from torchbus_deepspeed.engine.states import Entry, put_states, whole_states

LOCAL = (
    "a checkpoint between a backward under s.no_sync() and {}.step(), after a backward of all"
    " ranks in the same step: DeepSpeed has gradients of all ranks, and p.grad has this rank's own."
    " Save after the step"
)


class Gradients:
    """Handles the events of torchbus-checkpoint, which all ranks receive."""

    def __init__(self, engines: Held) -> None:
        self._engines = engines

    @hookimpl(optionalhook=True)
    def whole_gradients(self, optimizer: Optimizer) -> list[Tensor | None] | None:
        held = self._engines.of(optimizer)
        if not any(each.has_gradients for each in held):
            return None
        mine = parameters_of(optimizer)
        if any(one.grad is not None for one in mine):
            raise Unsupported(LOCAL.format(type(optimizer).__name__))
        found: dict[int, Tensor] = {}
        for each in held:
            found |= each.whole_gradients(gathering(self._engines))
        return [found.get(id(one)) for one in mine]

    @hookimpl(optionalhook=True)
    def put_gradients(self, optimizer: Optimizer, gradients: list[Tensor | None]) -> bool | None:
        """Restore gradients; without an engine into ``p.grad``, where a new engine finds them."""
        held = self._engines.of(optimizer)
        pairs = zip(parameters_of(optimizer), gradients, strict=False)
        whole = {id(one): gradient for one, gradient in pairs if gradient is not None}
        for each in held:
            each.take_gradients(whole)
        return True if held else None


def hook(engines: Held, optimizer: Optimizer) -> None:
    """Patches both methods until the end of the session. All ranks must call them."""

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
    """Gathers the shards of all ranks."""

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
    """Load the states into the shards, and let torch load the rest.

    torch itself would round them to the dtype of the parameters.
    """
    held = engines.of(optimizer)
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    mine = parameters_of(optimizer)
    if not held or len(saved) != len(mine):
        return None
    entries = {
        id(one): state_dict["state"].get(number, {})
        for one, number in zip(mine, saved, strict=True)
    }
    for each in held:
        each.shadow.state.clear()
        put_states(each, entries)
    return {**state_dict, "state": {}}


def give_back(engines: Held, engine: Engine) -> None:
    """Give the loop's optimizer whole states at the end of the block. All ranks call it."""
    optimizer = engine.optimizer
    if optimizer is None:
        return
    found = whole_states(engine, engine.parameters, gathering(engines))
    for parameter in engine.parameters:
        if id(parameter) in found:
            optimizer.state[parameter] = found[id(parameter)]
