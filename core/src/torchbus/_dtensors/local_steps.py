"""Optimizers that compute element by element get the parts as plain tensors.

For a DTensor, torch finds out what each operation means. That takes longer than the operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from torchbus._compat.dtensors import own_part
from torchbus._session.context import Context

BY_ELEMENT = (
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
)
"""Modules of torch.optim. In each, a function of its name updates lists of tensors in place."""


class LocalSteps:
    """Replaces these functions.

    Hooks around a step, and the state, still see DTensors.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._replaced: set[ModuleType] = set()

    def add(self, optimizer: Optimizer) -> None:
        """Replace the functions that the optimizer's class and its bases use."""
        for cls in type(optimizer).__mro__:
            package, _, name = cls.__module__.rpartition(".")
            module = sys.modules[cls.__module__]
            if package == "torch.optim" and name in BY_ELEMENT and module not in self._replaced:
                self._session.replace(module, name, _on_parts)
                self._replaced.add(module)


def _on_parts(original: Callable[..., None]) -> Callable[..., None]:
    def update(params: list[object], *args: object, **kwargs: object) -> None:
        lists = [value for value in (params, *args, *kwargs.values()) if isinstance(value, list)]
        if torch.is_grad_enabled() or not _divided_alike(lists):
            return original(params, *args, **kwargs)
        parts = {id(tensors): [_part(tensor) for tensor in tensors] for tensors in lists}
        given = [list(own) for own in parts.values()]
        original(
            *(parts.get(id(value), value) for value in (params, *args)),
            **{name: parts.get(id(value), value) for name, value in kwargs.items()},
        )
        for tensors, own, before in zip(lists, parts.values(), given, strict=True):
            for index, made in enumerate(own):
                if made is not before[index]:
                    tensors[index] = _divided_like(made, params[index])

    return update


def _divided_alike(lists: list[list[object]]) -> bool:
    """Whether there are parts, and those of a parameter, its gradient and its state match."""
    params = lists[0]
    layouts = [
        (one.device_mesh, one.placements) if isinstance(one, DTensor) else None for one in params
    ]
    return any(layouts) and all(
        (one.device_mesh, one.placements) == layout
        for tensors in lists
        for one, layout in zip(tensors, layouts, strict=False)
        if isinstance(one, DTensor)
    )


def _part(value: object) -> object:
    return own_part(value) if isinstance(value, Tensor) else value


def _divided_like(made: object, parameter: object) -> object:
    """Divide a tensor of the state, which the first step has made, as its parameter is."""
    if not isinstance(parameter, DTensor) or not isinstance(made, Tensor):
        return made
    return DTensor.from_local(
        made,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
