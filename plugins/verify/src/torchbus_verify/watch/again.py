"""Repeats the calls of another rank, and restores all state afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torchbus.plugin import Unsupported

from torchbus_strategy import random_streams
from torchbus_verify._compat import COLLECTIVES, DispatchMode
from torchbus_verify.watch.calls import Call, differentiable
from torchbus_verify.watch.findings import dense

Gradients = dict[str, Tensor]


def gradients(calls: Sequence[Call], modules: Sequence[Module], names: dict[int, str]) -> Gradients:
    """Return the parameters' gradients from these calls by name. ``names``: by parameter id."""
    total: Gradients = {}
    mode: Any = Silent()  # type: ignore[no-untyped-call]
    with _as_before(modules), mode:
        for call in calls:
            for name, one in _of(call, modules[call.module], names).items():
                total[name] = total[name] + dense(one) if name in total else dense(one)
    return total


def _of(call: Call, module: Module, names: dict[int, str]) -> Gradients:
    parameters = {
        name: one.detach().requires_grad_(one.requires_grad)
        for name, one in module.named_parameters()
    }
    device = next(iter(parameters.values())).device
    call = call.on(device)
    random_streams.write(call.random)
    with torch.enable_grad(), _autocast(call, device):
        outputs = torch.func.functional_call(
            module, {**parameters, **call.buffers}, call.inputs, call.named
        )
        wanted = {
            names[id(one)]: parameters[name]
            for name, one in module.named_parameters()
            if id(one) in names
        }
        return _derived(differentiable(outputs), call.gradients, wanted)


def _derived(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], wanted: Gradients
) -> Gradients:
    """Return the parameters' gradients, from the gradients of the outputs."""
    pairs = zip(outputs, gradients, strict=True)
    reached = [(one, gradient) for one, gradient in pairs if gradient is not None]
    found = torch.autograd.grad(
        [one for one, _ in reached],
        list(wanted.values()),
        [gradient for _, gradient in reached],
        allow_unused=True,
    )
    return {name: one for name, one in zip(wanted, found, strict=True) if one is not None}


def _autocast(call: Call, device: torch.device) -> Any:
    return nullcontext() if call.autocast is None else torch.autocast(device.type, call.autocast)


class Silent(DispatchMode):
    """Blocks collectives inside: the other ranks do not take part."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise Unsupported("a model's forward communicates with other ranks")
        return func(*args, **(kwargs or {}))


@contextmanager
def _as_before(modules: Sequence[Module]) -> Iterator[None]:
    """Restores generators and module attributes, such as caches, that a forward may set."""
    states, held = random_streams.read(), [_held(one) for one in modules]
    try:
        yield
    finally:
        random_streams.write(states)
        for module, attributes in zip(modules, held, strict=True):
            vars(module).clear()
            vars(module).update({name: _filled(*both) for name, both in attributes.items()})


def _held(module: Module) -> dict[str, tuple[object, object]]:
    """Return the attributes, with the contents of containers."""
    return {
        name: (value, copy.copy(value) if isinstance(value, list | dict | set) else None)
        for name, value in vars(module).items()
    }


def _filled(value: Any, content: Any) -> Any:
    """Restore the contents of a container."""
    if content is not None:
        value.clear()
        value.extend(content) if isinstance(value, list) else value.update(content)
    return value
