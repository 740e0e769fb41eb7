"""Hooks by which a divided model's ``state_dict()`` is whole, and takes whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torchbus.plugin import Context


def whole_states(session: Context) -> Callable[..., None]:
    """``model.state_dict()`` has whole tensors, on all ranks. All of them call it. For each module, since a part may be asked by itself."""

    def gather(module: Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in module._parameters if session.gathers_states else ():
            value = state.get(prefix + name)
            if isinstance(value, DTensor):
                state[prefix + name] = value.full_tensor()

    return gather


@torch.no_grad()
def divided_states(module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """``model.load_state_dict`` takes whole tensors, the same on all ranks."""
    for name, mine in module._parameters.items():
        value = state.get(prefix + name)
        if isinstance(mine, DTensor) and isinstance(value, Tensor) and not isinstance(value, DTensor):
            state[prefix + name] = distribute_tensor(value.to(mine.device), mine.device_mesh, mine.placements, src_data_rank=None)
