"""Converts an optimizer's state between flat shards and torch's layout.

For each kind of number that the optimizer keeps per element (momentum), the state of a flat part
has a tensor of the part's size. It also has what all elements share (the count of steps).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

from torchbus_deepspeed.engine.engine import Engine
from torchbus_deepspeed.engine.layout import Gather

MASTER = "deepspeed_master"
"""In 16 bits, a parameter's value as DeepSpeed steps it, in float32."""
UNLIKE = (
    "{}.load_state_dict: {!r} of parameters {} and {} differ ({} and {}), and DeepSpeed has one for"
    " all parameters of a group. Load states whose parameters have been stepped together, or use"
    " strategy='ddp' or 'fsdp'"
)
Entry = dict[str, Any]


def whole_states(engine: Engine, parameters: Sequence[Tensor], gather: Gather) -> dict[int, Entry]:
    """Return the whole state of each of the ``parameters`` with one, by id. All ranks call it."""
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


def put_states(engine: Engine, entries: Mapping[int, Mapping[str, Any]]) -> None:
    """Load the state of whole parameters, by their ids, into the shards."""
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
    engine: Engine, number: int, inside: Sequence[Tensor], entries: Mapping[int, Mapping[str, Any]]
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


def _is_per_element(engine: Engine, parameter: Tensor, name: str, value: object) -> bool:
    shape = engine.layout[parameter].shape
    return isinstance(value, Tensor) and value.shape == shape and (name != "step" or bool(shape))


def _common(engine: Engine, inside: Sequence[Tensor], name: str, values: Mapping[int, Any]) -> Any:
    first = values[id(inside[0])]
    for number, parameter in enumerate(inside):
        other = values[id(parameter)]
        if (first is None) != (other is None) or (first is not None and bool(first != other)):
            facts = type(engine.optimizer).__name__, name, 0, number, first, other
            raise Unsupported(UNLIKE.format(*facts))
    return copy.deepcopy(first)
