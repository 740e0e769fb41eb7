"""Converts an optimizer's state between flat shards and torch's layout.

The state of a flat shard has a tensor of the shard's size for each value that the optimizer stores
per element (momentum). It also has the values that all elements share (the count of steps).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Unsupported, hookimpl

from torchbus_deepspeed import _compat
from torchbus_deepspeed.engine import ReducingEngine, SessionEngines
from torchbus_deepspeed.layout import Gather
from torchbus_deepspeed.shadow import parameters_of

MASTER = "deepspeed_master"
"""The key of a parameter's float32 value that DeepSpeed steps, if the model is in 16 bits."""
UNLIKE = (
    "{}.load_state_dict: {!r} of parameters {} and {} differ ({} and {}), and DeepSpeed has one for"
    " all parameters of a group. Load states whose parameters have been stepped together, or use"
    " strategy='ddp' or 'fsdp'"
)
MOST = 16
"""Names of states: each takes as much memory as a shard, even if it is of one parameter."""
MANY = (
    "{}.load_state_dict: {} kinds of state, and DeepSpeed keeps at most {}, each as large as the"
    " whole group. Load states that this optimizer has written, or use strategy='ddp' or 'fsdp'"
)
NOT_WHOLE = (
    "{}.load_state_dict: {!r} of parameter {} is not a tensor of its shape {}. Load states that"
    " this optimizer has written"
)
Entry = dict[str, Any]


def whole_states(
    engine: ReducingEngine, parameters: Sequence[Tensor], gather: Gather
) -> dict[int, Entry]:
    """Return the whole states of the ``parameters`` that have a state, by id.

    All ranks must call this.
    """
    parts = [engine.shadow.state.get(master, {}) for master in engine.masters]
    names = sorted({name for part in parts for name in part})
    found: dict[int, Entry] = {}
    for name in names:
        values = [part.get(name) for part in parts]
        per_element = [
            value
            if isinstance(value, Tensor) and value.shape == master.shape and value.dim()
            else None
            for value, master in zip(values, engine.masters, strict=True)
        ]
        for parameter, whole in engine.layout.whole(parameters, per_element, gather):
            found.setdefault(id(parameter), {})[name] = whole
        for parameter in parameters:
            group = engine.layout[parameter].group
            if per_element[group] is None and name in parts[group]:
                entry = found.setdefault(id(parameter), {})
                entry[name] = copy.deepcopy(values[group])
    if found and engine.masters[0].dtype != engine.parameters[0].dtype:
        for parameter, whole in engine.layout.whole(parameters, engine.masters, gather):
            found.setdefault(id(parameter), {})[MASTER] = whole
    if engine.kernel is not None:
        return {key: engine.kernel.outward(entry) for key, entry in found.items()}
    return found


def put_states(engine: ReducingEngine, entries: Mapping[int, Mapping[str, Any]]) -> None:
    """Load states of whole parameters, by their ids, into the shards."""
    if engine.kernel is not None:
        entries = {key: engine.kernel.inward(entry) for key, entry in entries.items()}
    for number, master in enumerate(engine.masters):
        inside = [
            parameter
            for parameter in engine.parameters
            if engine.layout[parameter].group == number and entries.get(id(parameter))
        ]
        if inside:
            engine.shadow.state[master] = _of_part(engine, number, inside, entries)
    with_master = [one for one in engine.parameters if MASTER in entries.get(id(one), {})]
    for parameter in with_master:
        engine.layout.put(parameter, entries[id(parameter)][MASTER], engine.masters)


def _of_part(
    engine: ReducingEngine,
    number: int,
    inside: Sequence[Tensor],
    entries: Mapping[int, Mapping[str, Any]],
) -> Entry:
    master, part = engine.masters[number], {}
    for name in _names(inside, entries):
        values: dict[int, Any] = {id(one): entries[id(one)].get(name) for one in inside}
        if all(_is_per_element(engine, one, name, values[id(one)]) for one in inside):
            flat = torch.zeros_like(master, requires_grad=False)
            flats = [flat if index == number else master for index in range(len(engine.masters))]
            for parameter in inside:
                engine.layout.put(parameter, values[id(parameter)], flats)
            part[name] = flat
        else:
            part[name] = _common(engine, inside, name, values)
    return part


def _names(inside: Iterable[Tensor], entries: Mapping[int, Mapping[str, Any]]) -> list[str]:
    return sorted({name for one in inside for name in entries[id(one)]} - {MASTER})


def _is_per_element(engine: ReducingEngine, parameter: Tensor, name: str, value: object) -> bool:
    shape = engine.layout[parameter].shape
    return isinstance(value, Tensor) and value.shape == shape and (name != "step" or bool(shape))


def _common(
    engine: ReducingEngine, inside: Sequence[Tensor], name: str, values: Mapping[int, Any]
) -> Any:
    first = values[id(inside[0])]
    for number, parameter in enumerate(inside):
        other = values[id(parameter)]
        if (first is None) != (other is None) or (first is not None and bool(first != other)):
            facts = type(engine.optimizer).__name__, name, 0, number, first, other
            raise Unsupported(UNLIKE.format(*facts))
    return copy.deepcopy(first)


LOCAL = (
    "a checkpoint between a backward under s.no_sync() and {}.step(), after a backward of all"
    " ranks in the same step: DeepSpeed has gradients of all ranks, and p.grad has this rank's own."
    " Save after the step"
)


class CheckpointEvents:
    """Handles the events of torchbus-checkpoint, which all ranks receive."""

    def __init__(self, engines: SessionEngines) -> None:
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
        """Restore gradients into the engines.

        If there are none yet, the checkpoint writes ``p.grad``, where a new engine finds them.
        """
        held = self._engines.of(optimizer)
        pairs = zip(parameters_of(optimizer), gradients, strict=False)
        whole = {id(one): gradient for one, gradient in pairs if gradient is not None}
        for each in held:
            each.take_gradients(whole)
        return True if held else None


def hook(engines: SessionEngines, optimizer: Optimizer) -> None:
    """Make an optimizer's ``state_dict`` and ``load_state_dict`` whole, until the session ends.

    All ranks must call these methods.
    """
    stack = engines.session.on_close
    whole, divide = partial(_whole, engines), partial(_divide, engines)
    stack.callback(optimizer.register_state_dict_post_hook(whole).remove)
    stack.callback(optimizer.register_load_state_dict_pre_hook(divide).remove)


def _whole(
    engines: SessionEngines, optimizer: Optimizer, state_dict: dict[str, Any]
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


def gathering(engines: SessionEngines) -> Any:
    """Return a function that gathers the shards of all ranks."""

    def gather(flat: Tensor) -> list[Tensor]:
        job = engines.session.job
        assert job is not None
        job.wait_in("state_dict")
        found = engines.session.all_gather(flat)
        job.go_on()
        return found

    return gather


def _divide(
    engines: SessionEngines, optimizer: Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any] | None:
    """Load the states into the shards, and let torch load the rest.

    torch would round the states to the dtype of the parameters.
    """
    held = engines.of(optimizer)
    saved = [number for group in state_dict["param_groups"] for number in group["params"]]
    mine = parameters_of(optimizer)
    if len(saved) != len(mine):
        return None
    entries = {
        id(one): state_dict["state"].get(number, {})
        for one, number in zip(mine, saved, strict=True)
    }
    _refuse_forged(optimizer, entries)
    if not held:
        return None
    for each in held:
        each.shadow.state.clear()
        put_states(each, entries)
    return {**state_dict, "state": {}}


def _refuse_forged(optimizer: Optimizer, entries: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise Unsupported for states that would fill the memory, or fail when an engine is made."""
    cls = type(optimizer).__name__
    names = {name for entry in entries.values() for name, _ in entry.items()}
    if len(names) > MOST:
        raise Unsupported(MANY.format(cls, len(names), MOST))
    for number, parameter in enumerate(parameters_of(optimizer)):
        shape, entry = _compat.shape_of(parameter), entries[id(parameter)]
        if MASTER in entry and not _is_whole(entry[MASTER], shape):
            raise Unsupported(NOT_WHOLE.format(cls, MASTER, number, tuple(shape)))


def _is_whole(value: object, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.shape == shape


def give_back(engines: SessionEngines, engine: ReducingEngine) -> None:
    """Give the loop's optimizer whole states at the end of the block. All ranks must call this."""
    optimizer = engine.optimizer
    if optimizer is None:
        return
    found = whole_states(engine, engine.parameters, gathering(engines))
    for parameter in engine.parameters:
        if id(parameter) in found:
            optimizer.state[parameter] = found[id(parameter)]
