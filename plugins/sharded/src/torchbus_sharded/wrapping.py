"""The wrapping policy: which parts of a model are units, gathered together before they compute; and
the way back to a whole model, with its class, parameters and hooks.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torchbus import objects
from torchbus.plugin import UsageError

from torchbus_sharded._compat import (
    DATA,
    forget_engine,
    let_go_of_early,
    parameters,
    share_backward_hooks,
)
from torchbus_strategy import sharding

Policy = str | int | Collection[type[Module] | str] | None


def check(policy: Policy) -> None:
    """Raise UsageError for an invalid policy."""
    if (
        policy is None
        or policy == "auto"
        or (isinstance(policy, int) and not isinstance(policy, bool) and policy > 0)
    ):
        return
    if (
        isinstance(policy, list | tuple | set | frozenset)
        and policy
        and all(
            isinstance(one, str) or (isinstance(one, type) and issubclass(one, Module))
            for one in policy
        )
    ):
        return
    raise UsageError(
        f"auto_wrap_policy={policy!r}: use 'auto' (repeated blocks), a set of module classes or"
        " their names, a number of parameters, or None for one unit"
    )


def units(model: Module, policy: Policy) -> list[Module]:
    """Return the units, inner ones first, without the model itself.

    A part that shares a parameter or a module with the rest of the model is not a unit, because a
    parameter can be gathered in one place only.
    """
    inner = [
        module
        for module in model.modules()
        if module is not model and any(True for _ in module.parameters())
    ]
    if policy is None:
        chosen: list[Module] = []
    elif policy == "auto":
        chosen = objects.repeated_blocks(model)
    elif isinstance(policy, int):
        chosen = _large([module for module in inner if objects.is_called(module)], policy)
    else:
        classes = tuple(one for one in policy if isinstance(one, type))
        chosen = [
            module
            for module in inner
            if isinstance(module, classes) or type(module).__name__ in policy
        ]
    holders = _holders(model)
    return [part for part in reversed(chosen) if _has_all_to_itself(part, holders)]


def _holders(model: Module) -> dict[int, set[int]]:
    """Return the modules that own each parameter or module, by ids."""
    found: dict[int, set[int]] = {}
    for module in model.modules():
        for thing in (*parameters(module).values(), *module.children()):
            found.setdefault(id(thing), set()).add(id(module))
    return found


def _has_all_to_itself(part: Module, holders: dict[int, set[int]]) -> bool:
    inside = {id(module): module for module in part.modules()}
    things = [
        one
        for module in inside.values()
        for one in (*parameters(module).values(), *module.children())
        if one is not None
    ]
    return all(holders[id(thing)] <= inside.keys() for thing in things)


def called_parts(model: Module, methods: Collection[str]) -> list[Module]:
    """Return the model or, if it has no forward (such as a ModuleDict), the models in it."""
    if (
        objects.is_called(model)
        or "forward" in vars(model)
        or any(hasattr(model, name) for name in methods)
    ):
        return [model]
    return [part for child in model.children() for part in called_parts(child, methods)]


def _large(modules: list[Module], parameters: int) -> list[Module]:
    return [
        module
        for module in modules
        if sum(one.numel() for one in module.parameters()) >= parameters
    ]


def make_whole(model: Module) -> dict[int, nn.Parameter]:
    """Gather the parameters. All ranks call it.

    Returns the whole parameters by the ``id`` of the divided ones.
    """
    let_go_of_early(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the outermost unit stays gathered after a forward
    whole: dict[int, nn.Parameter] = {}
    divided: list[DTensor] = []  # holds references, so that ids stay unique
    for module in model.modules():
        for name, parameter in parameters(module).items():
            if isinstance(parameter, DTensor):
                divided.append(parameter)
                if id(parameter) not in whole:
                    whole[id(parameter)] = _gathered(parameter)
                parameters(module)[name] = whole[id(parameter)]
    for module in list(model.modules()):
        forget_engine(module)
    return whole


def _gathered(parameter: DTensor) -> nn.Parameter:
    full = nn.Parameter(sharding.whole(parameter), requires_grad=parameter.requires_grad)
    if parameter.grad is not None:
        full.grad = sharding.whole(parameter.grad)
    share_backward_hooks(parameter, full)
    return full


Strides = dict[str, tuple[int, ...]]


def make_contiguous(model: Module) -> Strides:
    """Make all parameters contiguous. Returns the strides of those that were not, by name."""
    found: Strides = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_contiguous():
            found[name] = parameter.stride()
            parameter.data = parameter.data.contiguous()
    return found


def put_strides(model: Module, strides: Strides) -> None:
    """Restore the strides of whole parameters."""
    for name, stride in strides.items():
        parameter = model.get_parameter(name)
        whole = parameter.detach()
        made = torch.empty_strided(whole.shape, stride, dtype=whole.dtype, device=whole.device)
        DATA.__set__(parameter, made.copy_(whole))
