"""A divided model made whole again, as it was before: its class, its parameters, its hooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module

from torchbus_sharded.engine.fsdp2 import let_go_of_early, original_class

ENGINE = ("torch.distributed.fsdp", "torch.distributed._composable")
KINDS_OF_HOOKS = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_state_dict_pre_hooks", "_state_dict_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
LEFT_BY_ENGINE = (STATE_KEY, REGISTRY_KEY, "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def make_whole(model: Module, methods: Iterable[str]) -> dict[int, nn.Parameter]:
    """All ranks call it: parameters are gathered. Returns the whole ones by ``id`` of the divided ones."""
    let_go_of_early(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the outermost stays gathered after a forward
    whole: dict[int, nn.Parameter] = {}
    divided: list[DTensor] = []  # alive, so that no two have one id
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if isinstance(parameter, DTensor):
                divided.append(parameter)
                if id(parameter) not in whole:
                    whole[id(parameter)] = _gathered(parameter)
                module._parameters[name] = whole[id(parameter)]
    for module in list(model.modules()):
        _forget_engine(module)
    for name in methods:
        vars(model).pop(name, None)
    return whole


def _gathered(parameter: Any) -> nn.Parameter:
    full = nn.Parameter(parameter.detach().full_tensor(), requires_grad=parameter.requires_grad)
    if parameter.grad is not None:
        full.grad = parameter.grad.full_tensor()
    if parameter._backward_hooks:
        full._backward_hooks = parameter._backward_hooks
    return full


def _forget_engine(module: Module) -> None:
    for kind in KINDS_OF_HOOKS:
        hooks = getattr(module, kind)
        for key in [key for key, hook in hooks.items() if (getattr(hook, "__module__", "") or "").startswith(ENGINE)]:
            del hooks[key]
    for key in LEFT_BY_ENGINE:
        vars(module).pop(key, None)
    _module_state_mapping.pop(module, None)
    if isinstance(module, FSDPModule):
        module.__class__ = original_class(module)  # type: ignore[assignment]
