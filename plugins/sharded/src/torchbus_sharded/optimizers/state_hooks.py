"""Hooks that make a divided model's ``state_dict()`` whole, and divide what it loads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torchbus.plugin import Context

from torchbus_sharded._compat.tensors import parameters


def whole_states(session: Context) -> Callable[..., None]:
    """A hook that gives ``model.state_dict()`` whole tensors, on all ranks. All of them call it.

    Each module gets it, because the script may ask a part of the model by itself.
    """

    def gather(module: Module, state: dict[str, object], prefix: str, metadata: object) -> None:
        for name in parameters(module) if session.gathers_states else ():
            value = state.get(prefix + name)
            if isinstance(value, DTensor):
                state[prefix + name] = value.full_tensor()

    return gather


@torch.no_grad()
def divided_states(module: Module, state: dict[str, object], prefix: str, *_: object) -> None:
    """Let ``model.load_state_dict`` take whole tensors, the same on all ranks."""
    for name, mine in parameters(module).items():
        value = state.get(prefix + name)
        if (
            isinstance(mine, DTensor)
            and isinstance(value, Tensor)
            and not isinstance(value, DTensor)
        ):
            state[prefix + name] = distribute_tensor(
                value.to(mine.device), mine.device_mesh, mine.placements, src_data_rank=None
            )
