"""Restores a sharded model to a whole one, with its class, parameters and hooks."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module

from torchbus_sharded._compat.fsdp2 import forget_engine
from torchbus_sharded._compat.gathering import let_go_of_early
from torchbus_sharded._compat.tensors import DATA, parameters, share_backward_hooks
from torchbus_strategy import sharding


def make_whole(model: Module) -> dict[int, nn.Parameter]:
    """Gather the parameters. All ranks call it.

    Returns the whole ones by the ``id`` of the divided ones.
    """
    let_go_of_early(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the outermost stays gathered after a forward
    whole: dict[int, nn.Parameter] = {}
    divided: list[DTensor] = []  # keeps them alive, so that ids stay unique
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
