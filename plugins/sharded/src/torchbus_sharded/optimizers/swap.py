"""Optimizers get the new parameters, and their state, if an engine has replaced the old ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torch.optim import Optimizer


def named(model: Module) -> dict[str, nn.Parameter]:
    """The parameters by name. A shared one has several names."""
    return dict(model.named_parameters(remove_duplicate=False))


def swap(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> None:
    """Replace the optimizer's parameters, and move their state.

    ``replaced`` holds new parameters by the ``id`` of the old ones. These must still be alive, if
    without their values.
    """
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(id(parameter), parameter) for parameter in group["params"]]
    for old in [parameter for parameter in optimizer.state if id(parameter) in replaced]:
        new = replaced[id(old)]
        optimizer.state[new] = {
            key: like(value, new) for key, value in optimizer.state.pop(old).items()
        }


def like(value: Any, new: Tensor) -> Any:
    """Divide a state tensor, or make it whole, as its parameter is, if they have the same shape.

    Dividing takes each rank's own values.
    """
    if isinstance(value, DTensor) and not isinstance(new, DTensor):
        return value.full_tensor()
    if isinstance(value, Tensor) and value.shape == new.shape and isinstance(new, DTensor):
        return distribute_tensor(value, new.device_mesh, new.placements, src_data_rank=None)
    return value
