"""Parameters in another order of memory, such as channels_last: torch's engine takes none."""

from __future__ import annotations

import torch
from torch.nn import Module

from torchbus_sharded._compat.tensors import DATA

Strides = dict[str, tuple[int, ...]]


def make_contiguous(model: Module) -> Strides:
    """Let all parameters be contiguous. Returns the strides of those that were not, by name."""
    found: Strides = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_contiguous():
            found[name] = parameter.stride()
            parameter.data = parameter.data.contiguous()
    return found


def put_strides(model: Module, strides: Strides) -> None:
    """Give whole parameters the strides that they had."""
    for name, stride in strides.items():
        parameter = model.get_parameter(name)
        whole = parameter.detach()
        made = torch.empty_strided(whole.shape, stride, dtype=whole.dtype, device=whole.device)
        DATA.__set__(parameter, made.copy_(whole))
