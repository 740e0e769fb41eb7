"""From the things of a loop to what stands in a checkpoint, and back. The ranks have it in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop.contents import Contents, Named, class_name, hidden_buffers, parameters
from torchbus_checkpoint.state.plain import decode, encode, is_part

State = dict[str, Any]


# Take --------------------------------------------------------------------------------------------------------------


def weights(contents: Contents) -> dict[str, State]:
    """The plain ``state_dict`` of each model, by name of its file."""
    alone = len(contents.models) == 1
    return {"model.pt" if alone else _file_name(name): encode(dict(model.state_dict()), name) for name, model in contents.models}


def _file_name(name: str) -> str:
    """``model-G.pt``, ``model-nets[0].pt``"""
    return f"model-{re.sub(r'[^0-9A-Za-z_.#-]+', '_', name).strip('_')}.pt"


def as_safetensors(weights: dict[str, State]) -> dict[str, bytes]:
    """The same in the format of safetensors, tied weights twice; what is no tensor is in the other files alone."""
    from safetensors.torch import save

    tensors = {
        name: {key: value.detach().to("cpu", copy=True).contiguous() for key, value in plain.items() if isinstance(value, Tensor)}
        for name, plain in weights.items()
    }
    return {f"{name.removesuffix('.pt')}.safetensors": save(found) for name, found in tensors.items()}


def training(contents: Contents, has_gradients: Callable[[Optimizer], bool], registered: dict[str, Any]) -> State:
    """Everything else. ``has_gradients`` says of which optimizers the gradients are still needed, ``registered`` are states."""
    return {
        "trained": [_model(name, model) for name, model in contents.trained],
        "other": [_model(name, model) for name, model in contents.other],
        "optimizers": [_optimizer(name, optimizer, has_gradients(optimizer)) for name, optimizer in contents.optimizers],
        "loose": _loose(contents),
        "schedulers": _states(contents.schedulers),
        "scalers": _states(contents.scalers),
        "registered": registered,
    }


def of_registered(registered: dict[str, Any]) -> State:
    return {name: encode(thing.state_dict(), f"s.register({name!r})") for name, thing in registered.items()}


def _model(name: str, model: Module) -> State:
    return {
        "name": name,
        "class": class_name(model),
        "training": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "hidden": {key: buffer.detach() for key, buffer in hidden_buffers(model).items()},
    }


def _optimizer(name: str, optimizer: Optimizer, dirty: bool) -> State:
    return {
        "name": name,
        "class": type(optimizer).__name__,
        "shapes": [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups],
        "state": encode(optimizer.state_dict(), name),
        "gradients": [None if p.grad is None else p.grad.detach() for p in parameters(optimizer)] if dirty else None,
    }


def _loose(contents: Contents) -> list[Tensor]:
    """Trained tensors that no model owns."""
    owned = {id(parameter) for _, model in contents.models for parameter in model.parameters()}
    held = {id(parameter): parameter for _, optimizer in contents.optimizers for parameter in parameters(optimizer)}
    return [parameter.detach() for key, parameter in held.items() if key not in owned]


def _states(things: Named) -> list[State]:
    return [{"name": name, "class": type(thing).__name__, "state": encode(thing.state_dict(), name)} for name, thing in things]


# Put back ----------------------------------------------------------------------------------------------------------


def check(contents: Contents, saved: State, saved_weights: list[State], registered: dict[str, Any], where: str) -> None:
    """Raise CheckpointError, naming the first thing that does not fit, before anything is changed."""
    for kind, things in (("trained", contents.trained), ("other", contents.other), ("optimizers", contents.optimizers),
                         ("schedulers", contents.schedulers), ("scalers", contents.scalers)):  # fmt: skip
        _check_same(kind, saved[kind], things, where)
    for entry, state, (name, model) in zip(saved["trained"] + saved["other"], saved_weights, contents.models, strict=True):
        if (len(entry["training"]), len(entry["requires_grad"])) != (len([*model.modules()]), len([*model.parameters()])):
            raise CheckpointError(f"{where}: model {entry['name']} ({entry['class']}) had other layers than {name} of this loop")
        _check_model(f"{where}: model {entry['name']} ({entry['class']})", state, name, model)
    for entry, (name, optimizer) in zip(saved["optimizers"], contents.optimizers, strict=True):
        shapes = [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]
        if shapes != entry["shapes"]:
            raise CheckpointError(
                f"{where}: optimizer {entry['name']} held {_counted(entry['shapes'])}; {name} of this loop holds {_counted(shapes)}"
            )
    if len(saved["loose"]) != len(_loose(contents)):
        raise CheckpointError(f"{where}: {len(saved['loose'])} trained tensors belonged to no model, {len(_loose(contents))} do in this loop")
    for name in {*saved["registered"]} ^ {*registered}:
        here, there = ("this loop", "the checkpoint") if name in registered else ("the checkpoint", "this loop")
        raise CheckpointError(f"{where}: {here} has a registered {name!r}, {there} has not: call s.register({name!r}, ...) alike in both runs")


def _check_same(kind: str, saved: list[State], things: Named, where: str) -> None:
    theirs, ours = [entry["class"] for entry in saved], [class_name(thing) for _, thing in things]
    if theirs != ours:
        words = {"trained": "trained models", "other": "other models"}.get(kind, kind)
        raise CheckpointError(
            f"{where} is not of this loop: it holds the {words} {_listed(saved)}; this loop has "
            f"{', '.join(f'{name} ({class_name(thing)})' for name, thing in things) or 'none'}"
        )


def _listed(saved: list[State]) -> str:
    return ", ".join(f"{entry['name']} ({entry['class']})" for entry in saved) or "none"


def _counted(shapes: list[list[list[int]]]) -> str:
    groups = [f"{len(group)} tensors with {sum(torch.Size(shape).numel() for shape in group)} numbers" for group in shapes]
    return " and ".join(groups) or "nothing"


def _check_model(what: str, saved: State, name: str, model: Module) -> None:
    own = model.state_dict()
    for key in [*saved, *own]:
        if key not in own or key not in saved:
            raise CheckpointError(f"{what} {'has no' if key in own else 'has'} {key}, and {name} of this loop {'has' if key in own else 'has not'}")
        theirs, ours = (tuple(one.shape) if isinstance(one, Tensor) else None for one in (saved[key], own[key]))
        if theirs != ours:
            raise CheckpointError(f"{what}: {key} has shape {theirs}, and in {name} of this loop {ours}")


def put_weights(contents: Contents, saved_weights: list[State]) -> None:
    for state, (_, model) in zip(saved_weights, contents.models, strict=True):
        model.load_state_dict(decode(state))


def put_loose(contents: Contents, saved: State) -> None:
    for tensor, value in zip(_loose(contents), saved["loose"], strict=True):
        tensor.copy_(value)


def put_training(contents: Contents, saved: State) -> None:
    for entry, (_, model) in zip(saved["trained"] + saved["other"], contents.models, strict=True):
        put_flags(model, entry)
        with torch.no_grad():
            for key, buffer in hidden_buffers(model).items():
                buffer.copy_(entry["hidden"][key])
    for _, optimizer in contents.optimizers:
        for parameter in parameters(optimizer):
            parameter.grad = None
    for entry, (_, optimizer) in zip(saved["optimizers"], contents.optimizers, strict=True):
        _load(optimizer, entry)
        _put_gradients(optimizer, entry["gradients"] or ())
    for kind, things in (("schedulers", contents.schedulers), ("scalers", contents.scalers)):
        for entry, (_, thing) in zip(saved[kind], things, strict=True):
            _load(thing, entry)


def _load(thing: Any, entry: State) -> None:
    try:
        thing.load_state_dict(decode(entry["state"]))
    except Exception as error:
        raise CheckpointError(
            f"{entry['name']} ({entry['class']}) does not take the state that the checkpoint has of it ({type(error).__name__}: {error}): either "
            "its class has changed since, or training.pt is not what torchbus wrote"
        ) from error


def put_registered(saved: State, registered: dict[str, Any]) -> None:
    for name, thing in registered.items():
        thing.load_state_dict(decode(saved["registered"][name]))


def put_flags(model: Module, entry: State) -> None:
    for module, flag in zip(model.modules(), entry["training"], strict=True):
        module.training = flag
    for parameter, flag in zip(model.parameters(), entry["requires_grad"], strict=True):
        parameter.requires_grad_(flag)


def _put_gradients(optimizer: Optimizer, gradients: Iterable[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters(optimizer), gradients, strict=False):
        if gradient is not None:
            parameter.grad = _in_parts(gradient, parameter).to(parameter.device, parameter.dtype, copy=True)


def _in_parts(gradient: Tensor, parameter: Any) -> Tensor:
    """As the parameter is."""
    if not is_part(parameter) or is_part(gradient):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(gradient.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
