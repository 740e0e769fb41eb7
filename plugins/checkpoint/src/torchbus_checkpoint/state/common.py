"""Captures the states of a loop's objects that are the same on all ranks, and restores them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop.contents import (
    LoopContents,
    Named,
    ShapeOf,
    class_name,
    hidden_buffers,
    parameters,
)
from torchbus_checkpoint.state.edits import Edits
from torchbus_checkpoint.state.plain import State, Stateful, decode, encode, is_part


def weights(contents: LoopContents) -> dict[str, State]:
    """Return the plain ``state_dict`` of each model, by the name of its file without suffix."""
    is_single = len(contents.models) == 1
    return {
        "model" if is_single else _file_name(name): encode(dict(model.state_dict()), name)
        for name, model in contents.models
    }


def _file_name(name: str) -> str:
    """Return a name such as ``model-G`` or ``model-nets_0``."""
    return f"model-{re.sub(r'[^0-9A-Za-z_.#-]+', '_', name).strip('_')}"


GradientsOf = Callable[[Optimizer], list[Tensor | None] | None]


def training(contents: LoopContents, gradients_of: GradientsOf, registered: State) -> State:
    """Return everything except the weights: the content of the training file.

    ``gradients_of`` returns the gradients of an optimizer that the loop still needs, or None.
    ``registered`` has the states of the registered objects by name.
    """
    return {
        "trained": [_model(name, model) for name, model in contents.trained],
        "other": [_model(name, model) for name, model in contents.other],
        "optimizers": [
            _optimizer(name, optimizer, gradients_of(optimizer), contents)
            for name, optimizer in contents.optimizers
        ],
        "loose": loose(contents),
        "schedulers": _states(contents.schedulers),
        "scalers": _states(contents.scalers),
        "registered": registered,
    }


def of_registered(registered: dict[str, Stateful]) -> State:
    """Return the states of the registered objects."""
    return {
        name: encode(thing.state_dict(), f"s.register({name!r})")
        for name, thing in registered.items()
    }


def _model(name: str, model: Module) -> State:
    return {
        "name": name,
        "class": class_name(model),
        "training": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "hidden": {key: buffer.detach() for key, buffer in hidden_buffers(model).items()},
    }


def gradients(optimizer: Optimizer) -> list[Tensor | None]:
    """Return ``p.grad`` of each parameter, detached, or None."""
    return [None if p.grad is None else p.grad.detach() for p in parameters(optimizer)]


def _optimizer(
    name: str, optimizer: Optimizer, gradients: list[Tensor | None] | None, contents: LoopContents
) -> State:
    return {
        "name": name,
        "class": type(optimizer).__name__,
        "shapes": shapes_in(optimizer, contents.shape_of),
        "state": encode(optimizer.state_dict(), name),
        "built": contents.built(optimizer),
        "gradients": gradients,
    }


def loose(contents: LoopContents) -> list[Tensor]:
    """Return the trained tensors that no model owns."""
    owned = {id(parameter) for _, model in contents.models for parameter in model.parameters()}
    held = {
        id(parameter): parameter
        for _, optimizer in contents.optimizers
        for parameter in parameters(optimizer)
    }
    return [parameter.detach() for key, parameter in held.items() if key not in owned]


def _states(things: Named) -> list[State]:
    return [
        {"name": name, "class": type(thing).__name__, "state": encode(thing.state_dict(), name)}
        for name, thing in things
    ]


def shapes_in(optimizer: Optimizer, shape_of: ShapeOf) -> list[list[list[int]]]:
    """Return the shape of each whole parameter, by group."""
    return [
        [list(shape_of(parameter)) for parameter in group["params"]]
        for group in optimizer.param_groups
    ]


TakeGradients = Callable[[Optimizer, list[Tensor | None]], bool]


def put_weights(contents: LoopContents, saved_weights: list[State]) -> None:
    for state, (_, model) in zip(saved_weights, contents.models, strict=True):
        model.load_state_dict(decode(state))


def put_loose(contents: LoopContents, saved: State) -> None:
    for tensor, value in zip(loose(contents), saved["loose"], strict=True):
        tensor.copy_(value)


def put_training(
    contents: LoopContents, saved: State, take_gradients: TakeGradients, edits: Edits, where: str
) -> None:
    """Restore everything in the training file except loose tensors and registered objects.

    ``take_gradients`` offers an optimizer's gradients to the engine that stores them, if there is
    one, and then returns True. ``where`` names the checkpoint.
    """
    for entry, (_, model) in zip(saved["trained"] + saved["other"], contents.models, strict=True):
        put_flags(model, entry)
        with torch.no_grad():
            for key, buffer in hidden_buffers(model).items():
                buffer.copy_(entry["hidden"][key])
    for _, optimizer in contents.optimizers:
        for parameter in parameters(optimizer):
            parameter.grad = None
    schedulers = [
        (scheduler, entry["state"])
        for entry, (_, scheduler) in zip(saved["schedulers"], contents.schedulers, strict=True)
    ]
    edits.look([optimizer for _, optimizer in contents.optimizers], schedulers)
    for entry, (_, optimizer) in zip(saved["optimizers"], contents.optimizers, strict=True):
        _load(optimizer, entry, where)
        edits.put_optimizer(optimizer, decode(entry.get("built", [])))
        gradients = list(entry["gradients"] or ())
        if not take_gradients(optimizer, gradients):
            _put_gradients(optimizer, gradients)
    for kind, things in (("schedulers", contents.schedulers), ("scalers", contents.scalers)):
        for entry, (_, thing) in zip(saved[kind], things, strict=True):
            if kind == "scalers" or not edits.put_scheduler(thing, entry["state"]):
                _load(thing, entry, where)


def _load(thing: Stateful, entry: State, where: str) -> None:
    try:
        thing.load_state_dict(decode(entry["state"]))
    except Exception as error:
        raise CheckpointError(
            f"{where}: {entry['name']} ({entry['class']}) rejects its state in the checkpoint"
            f" ({type(error).__name__}: {error}): either its class has changed since, or torchbus"
            " did not write its training file"
        ) from error


def put_registered(saved: State, registered: dict[str, Stateful]) -> None:
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
            parameter.grad = _in_parts(gradient, parameter).to(
                parameter.device, parameter.dtype, copy=True
            )


def _in_parts(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Shard a gradient like its parameter."""
    if not is_part(parameter) or is_part(gradient):
        return gradient
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(
        gradient.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,
    )
