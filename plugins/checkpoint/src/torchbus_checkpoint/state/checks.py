"""Checks that a checkpoint holds every tensor of every model and optimizer exactly once, and
compares a checkpoint with this loop before anything is changed.

The checks raise CheckpointError, which names the first mismatch.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import warn
from torchbus.runtime.steps import StepCounter

from torchbus_checkpoint._compat import load_hooks
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop.contents import LoopContents, Named, class_name
from torchbus_checkpoint.state.common import loose, shapes_in
from torchbus_checkpoint.state.plain import State, decode

Held = dict[str, tuple[int, str]]
"""For each model or optimizer, the number of its tensors, and a digest of their names."""


def held(weights: dict[str, State], training: State) -> Held:
    """Return the tensors that this rank's states hold."""
    states = [(f"model {name}", state) for name, state in weights.items()]
    states += [
        (f"the state of optimizer {one['name']} ({one['class']})", one["state"]["state"])
        for one in training["optimizers"]
    ]
    return {what: _digested(sorted(_names(state))) for what, state in states}


def _digested(names: list[str]) -> tuple[int, str]:
    return len(names), hashlib.sha256("\n".join(names).encode()).hexdigest()


def _names(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, Tensor):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _names(item, f"{path}/{key}")


def refuse_separate(reported: list[Held], where: object) -> None:
    """Raise CheckpointError if the tensors in a rank's states differ from those of rank 0.

    Only rank 0 writes whole tensors, so a tensor that only another rank has would be lost.
    """
    first = reported[0]
    for rank, theirs in enumerate(reported):
        for what in {**first, **theirs}:
            if first.get(what) != theirs.get(what):
                raise CheckpointError(
                    f"checkpoint {where} would not be complete: {what} has"
                    f" {_number(first, what)} tensors on rank 0, and rank {rank} has"
                    f" {_number(theirs, what)}, which are not the same ones. A strategy that"
                    " divides them must gather them in its hooks of state_dict()"
                )


def _number(held: Held, what: str) -> int:
    return held.get(what, (0, ""))[0]


def warn_of_absent_states(optimizers: Iterable[tuple[str, Optimizer]], steps: StepCounter) -> None:
    """Warn if an optimizer that has stepped returns no state, although its class has a state."""
    for name, optimizer in optimizers:
        if steps.of(optimizer) and not optimizer.state_dict()["state"] and keeps_state(optimizer):
            warn(
                f"the checkpoint has no state of optimizer {name} ({type(optimizer).__name__}),"
                f" which has made {steps.of(optimizer)} steps. If a strategy keeps the state"
                " elsewhere, it must return it from its hook of state_dict(); if the optimizer has"
                " had no gradients so far, all is well"
            )


def keeps_state(optimizer: Optimizer) -> bool:
    """Whether a step with this class and these hyperparameters creates a state.

    This makes a trial step with a single number as the parameter.
    """
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.zeros(1)
    trial: Any = object.__new__(type(optimizer))
    vars(trial).update(vars(optimizer))
    vars(trial).pop("step", None)
    trial.state = defaultdict(dict)
    trial.param_groups = [{**optimizer.param_groups[0], "params": [weight]}]
    try:
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(trial)
    except KeyError:  # the constructor creates the state, as Adagrad's does in torch 2.4
        return True
    except Exception:  # the step needs a closure, or something else
        return False
    return bool(trial.state.get(weight))


def check(
    contents: LoopContents,
    saved: State,
    saved_weights: list[State],
    registered: Iterable[str],
    where: str,
) -> None:
    """Check the states that all ranks have in common. ``where`` names the checkpoint."""
    check_models(contents, saved, saved_weights, where)
    for kind in ("optimizers", "schedulers", "scalers"):
        _check_same(kind, saved[kind], getattr(contents, kind), where)
    for entry, (name, optimizer) in zip(saved["optimizers"], contents.optimizers, strict=True):
        _check_optimizer(entry, name, shapes_in(optimizer, contents.shape_of), where)
        if _is_of_torch(optimizer):
            _check_states(entry, where)
    _check_loose(len(saved["loose"]), len(loose(contents)), where)
    _check_registered({*saved["registered"]}, {*registered}, where)


def check_models(
    contents: LoopContents, saved: State, saved_weights: list[State], where: str
) -> None:
    """Check the models, and the names and shapes of their tensors."""
    for kind in ("trained", "other"):
        _check_same(kind, saved[kind], getattr(contents, kind), where)
    for entry, state, (name, model) in zip(
        saved["trained"] + saved["other"], saved_weights, contents.models, strict=True
    ):
        _check_layers(entry, name, model, where)
        _check_weights(f"{where}: model {entry['name']} ({entry['class']})", state, name, model)


REMEDY = "Use the code that wrote the checkpoint, or another folder"
PRUNED = (
    "torch.nn.utils.prune replaces tensors of a model: call prune.identity(module, name) before"
    " the loop, and prune.remove after the block"
)
WEIGHTS_ALONE = (
    "Call s.load after they are made. To get only the weights, read its model.safetensors with"
    " safetensors.torch.load_file"
)


def _check_same(kind: str, saved: list[State], things: Named, where: str) -> None:
    theirs, ours = [entry["class"] for entry in saved], [class_name(thing) for _, thing in things]
    if theirs != ours:
        label = {"trained": "trained models", "other": "other models"}.get(kind, kind)
        raise CheckpointError(
            f"{where} belongs to another loop: it holds the {label} {_listed(saved)}; this loop has"
            f" {', '.join(f'{name} ({class_name(thing)})' for name, thing in things) or 'none'}."
            f" {REMEDY if ours else WEIGHTS_ALONE}"
        )


def _listed(saved: list[State]) -> str:
    return ", ".join(f"{entry['name']} ({entry['class']})" for entry in saved) or "none"


def _check_layers(entry: State, name: str, model: Module, where: str) -> None:
    theirs = (len(entry["training"]), len(entry["requires_grad"]))
    if theirs != (len([*model.modules()]), len([*model.parameters()])):
        raise CheckpointError(
            f"{where}: model {entry['name']} ({entry['class']}) had other layers than {name} of"
            f" this loop. {REMEDY}"
        )


def _check_weights(what: str, saved: State, name: str, model: Module) -> None:
    mine = model.state_dict()
    for key in [*saved, *mine]:
        if key not in mine or key not in saved:
            is_pruned = any(one.rpartition("_")[2] == "orig" for one in mine.keys() ^ saved.keys())
            raise CheckpointError(
                f"{what} {'has no' if key in mine else 'has'} {key}, and {name} of this loop"
                f" {'has' if key in mine else 'has not'}. {PRUNED if is_pruned else REMEDY}"
            )
        theirs, ours = (
            tuple(one.shape) if isinstance(one, Tensor) else None for one in (saved[key], mine[key])
        )
        if theirs != ours:
            raise CheckpointError(
                f"{what}: {key} has shape {theirs}, and in {name} of this loop {ours}. {REMEDY}"
            )
        if theirs is not None and not _can_copy(saved[key], mine[key]):
            raise CheckpointError(
                f"{what}: torch can't copy {key}, which has the dtype {saved[key].dtype}, to"
                f" {name} of this loop. {REMEDY}"
            )


def _can_copy(source: Tensor, target: Tensor) -> bool:
    if source.dtype == target.dtype:
        return True
    try:
        torch.empty(1, dtype=target.dtype).copy_(torch.empty(1, dtype=source.dtype))
    except NotImplementedError:
        return False
    return True


def _check_optimizer(entry: State, name: str, shapes: list[list[list[int]]], where: str) -> None:
    if shapes != entry["shapes"]:
        raise CheckpointError(
            f"{where}: optimizer {entry['name']} held {_counted(entry['shapes'])}; {name} of"
            f" this loop holds {_counted(shapes)}. {REMEDY}"
        )


PER_NUMBER = {
    "acc_delta",
    "ax",
    "exp_avg",
    "exp_avg_sq",
    "exp_inf",
    "grad_avg",
    "max_exp_avg_sq",
    "momentum_buffer",
    "prev",
    "square_avg",
    "step_size",
    "sum",
}
"""What the classes of torch keep for each number of a parameter."""
BUFFER = "momentum_buffer"
"""May be None, and of sparse gradients it is sparse."""


def _is_of_torch(optimizer: Optimizer) -> bool:
    """Whether it is of a class of torch, and no hook of the script gives its states other forms."""
    if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
        return False
    return all(hook.__module__.startswith("torchbus_") for hook in load_hooks(optimizer))


def _check_states(entry: State, where: str) -> None:
    saved = decode(entry["state"])
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    shapes = [shape for group in entry["shapes"] for shape in group]
    for number, shape in zip(numbers, shapes, strict=True):
        for key, value in saved["state"].get(number, {}).items():
            if key in PER_NUMBER and not _is_per_number(key, value, shape):
                raise CheckpointError(
                    f"{where}: {entry['name']} ({entry['class']}) has {key!r} of parameter"
                    f" {number} in another form than the parameter, whose shape is"
                    f" {tuple(shape)}: torchbus did not write this state. Resume from an older"
                    " checkpoint, or start again in another folder"
                )


def _is_per_number(key: str, value: object, shape: list[int]) -> bool:
    if value is None or (isinstance(value, Tensor) and value.is_sparse):
        return key == BUFFER
    return isinstance(value, Tensor) and list(value.shape) == shape


def _counted(shapes: list[list[list[int]]]) -> str:
    groups = [
        f"{len(group)} tensors with {sum(torch.Size(shape).numel() for shape in group)} numbers"
        for group in shapes
    ]
    return " and ".join(groups) or "nothing"


def _check_loose(theirs: int, ours: int, where: str) -> None:
    if theirs != ours:
        raise CheckpointError(
            f"{where}: {theirs} trained tensors belonged to no model, {ours} do in this loop."
            f" {REMEDY}"
        )


def _check_registered(theirs: set[str], ours: set[str], where: str) -> None:
    for name in theirs ^ ours:
        here, there = "the checkpoint", "this loop"
        if name in ours:
            here, there = there, here
        raise CheckpointError(
            f"{where}: {here} has a registered {name!r}, {there} has not: call"
            f" s.register({name!r}, ...) in both runs"
        )
