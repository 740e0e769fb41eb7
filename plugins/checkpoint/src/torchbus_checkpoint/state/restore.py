"""Restores the states that ``capture`` returned into the objects of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop.contents import Contents, hidden_buffers, parameters
from torchbus_checkpoint.state.capture import loose
from torchbus_checkpoint.state.edits import Edits
from torchbus_checkpoint.state.plain import State, Stateful, decode, is_part

TakeGradients = Callable[[Optimizer, list[Tensor | None]], bool]


def put_weights(contents: Contents, saved_weights: list[State]) -> None:
    for state, (_, model) in zip(saved_weights, contents.models, strict=True):
        model.load_state_dict(decode(state))


def put_loose(contents: Contents, saved: State) -> None:
    for tensor, value in zip(loose(contents), saved["loose"], strict=True):
        tensor.copy_(value)


def put_training(
    contents: Contents, saved: State, take_gradients: TakeGradients, edits: Edits
) -> None:
    """``take_gradients``: offers the gradients of an optimizer to the engine that stores them."""
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
        _load(optimizer, entry)
        edits.put_optimizer(optimizer, decode(entry.get("built", [])))
        gradients = list(entry["gradients"] or ())
        if not take_gradients(optimizer, gradients):
            _put_gradients(optimizer, gradients)
    for kind, things in (("schedulers", contents.schedulers), ("scalers", contents.scalers)):
        for entry, (_, thing) in zip(saved[kind], things, strict=True):
            if kind == "scalers" or not edits.put_scheduler(thing, entry["state"]):
                _load(thing, entry)


def _load(thing: Stateful, entry: State) -> None:
    try:
        thing.load_state_dict(decode(entry["state"]))
    except Exception as error:
        raise CheckpointError(
            f"{entry['name']} ({entry['class']}) rejects its state in the checkpoint"
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
    """Shard a gradient as its parameter is sharded."""
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
