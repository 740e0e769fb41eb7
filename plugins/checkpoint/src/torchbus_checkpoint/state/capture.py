"""Captures the states of a loop's objects that are the same on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus_checkpoint.loop.contents import (
    Contents,
    Named,
    ShapeOf,
    class_name,
    hidden_buffers,
    parameters,
)
from torchbus_checkpoint.state.plain import State, Stateful, encode


def weights(contents: Contents) -> dict[str, State]:
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


def training(contents: Contents, gradients_of: GradientsOf, registered: State) -> State:
    """Return everything else: the content of the training file.

    ``gradients_of``: the gradients of an optimizer that the loop still needs, or None.
    ``registered``: states by name.
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
    """Return the gradients in ``p.grad``."""
    return [None if p.grad is None else p.grad.detach() for p in parameters(optimizer)]


def _optimizer(
    name: str, optimizer: Optimizer, gradients: list[Tensor | None] | None, contents: Contents
) -> State:
    return {
        "name": name,
        "class": type(optimizer).__name__,
        "shapes": shapes_in(optimizer, contents.shape_of),
        "state": encode(optimizer.state_dict(), name),
        "built": contents.built(optimizer),
        "gradients": gradients,
    }


def loose(contents: Contents) -> list[Tensor]:
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
