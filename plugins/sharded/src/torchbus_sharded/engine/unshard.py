"""Makes a divided model whole again, with the class, parameters and hooks that it had."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module

from torchbus_sharded._compat.fsdp2 import forget_engine
from torchbus_sharded._compat.gathering import let_go_of_early
from torchbus_sharded._compat.tensors import parameters, share_backward_hooks
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
    divided: list[DTensor] = []  # kept alive, so that no two have the same id
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
