"""Saves values of a loop, and restores them bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus import objects

PutBack = Callable[[], object]


@contextmanager
def restored(loader: DataLoader[object]) -> Iterator[None]:
    """Restore all models, optimizers and scalers at the end, and the generators of a loader."""
    with ExitStack() as stack, torch.no_grad():
        modules = objects.alive(Module)
        stack.callback(_tensors(modules))
        stack.callback(_flags(modules))
        for optimizer in objects.optimizers():
            stack.callback(_optimizer(optimizer))
        for scaler in objects.alive(GradScaler):
            stack.callback(scaler.load_state_dict, copy.deepcopy(scaler.state_dict()))
        for generator in _generators(loader):
            stack.callback(generator.set_state, generator.get_state())
        with torch.enable_grad():
            yield


def _tensors(modules: list[Module]) -> PutBack:
    """All parameters and buffers, copied to main memory, and the gradients."""
    held = [
        one for module in modules for one in (*module.parameters(False), *module.buffers(False))
    ]
    held += [
        one
        for optimizer in objects.optimizers()
        for group in optimizer.param_groups
        for one in group["params"]
    ]
    tensors = list({id(one): one for one in held if not one.is_meta}.values())
    values = [_here(one).to("cpu", copy=True) for one in tensors]
    gradients = [(one, one.grad, _copied(one.grad)) for one in tensors if one.is_leaf]

    def put_back() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            _here(tensor).copy_(value)
        for parameter, gradient, before in gradients:
            parameter.grad = gradient
            if gradient is not None:
                _here(gradient).copy_(_here(before))

    return put_back


def _flags(modules: list[Module]) -> PutBack:
    modes = [(module, module.training) for module in modules]
    trains = [(one, one.requires_grad) for module in modules for one in module.parameters(False)]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in trains:
            parameter.requires_grad_(flag)

    return put_back


def _optimizer(optimizer: Optimizer) -> PutBack:
    groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    rates = [_copied({k: v for k, v in group.items() if k != "params"}) for group in groups]
    states = {parameter: _copied(entry) for parameter, entry in optimizer.state.items()}

    def put_back() -> None:
        for group, values in zip(optimizer.param_groups, rates, strict=False):
            group.update(values)
        optimizer.state.clear()
        optimizer.state.update(states)

    return put_back


def _copied(value: Any) -> Any:
    """Return a copy with separate tensors. Parameters inside, as of LBFGS, are not copied."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value


def _here(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, in the same memory."""
    found: Any = tensor.detach()
    part: Tensor = found.to_local() if hasattr(found, "full_tensor") else found
    return part


def _generators(loader: DataLoader[object]) -> list[torch.Generator]:
    """Those of a loader and of its samplers."""
    parts: list[Any] = [loader, loader.sampler, loader.batch_sampler]
    parts.append(getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(part, "generator", None) for part in parts]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())
