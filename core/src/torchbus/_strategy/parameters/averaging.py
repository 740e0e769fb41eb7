"""Averaging gradients over ranks: those of a backward, and those that the loop has assigned."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torchbus._compat.dtensors import own_part, placed_as


def mean_over(tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Replace each by its mean over the ranks of a group, in one collective per dtype and device.

    In place. All ranks of the group call it with tensors of the same shapes, dtypes and devices.
    """
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for tensor, part in zip(same, flat.split([one.numel() for one in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


@torch.no_grad()
def average(
    parameters: Sequence[Tensor],
    weight: float,
    mean: Callable[[Sequence[Tensor]], None] = mean_over,
) -> None:
    """Average gradients that did not come from a synchronised ``backward``. All ranks call it.

    ``weight`` is this rank's weight in the mean. A gradient that no rank has stays None. Averaging
    gradients that are already equal changes nothing. ``mean`` replaces tensors by their mean.
    """
    device = own_part(parameters[0]).device
    present = torch.tensor([float(one.grad is not None) for one in parameters], device=device)
    dist.all_reduce(present)
    made = [one for one, ranks in zip(parameters, present.tolist(), strict=True) if ranks]
    gradients = [settled(one) * weight for one in made]
    mean(gradients)
    for one, gradient in zip(made, gradients, strict=True):
        one.grad = gradient


def settled(parameter: Tensor) -> Tensor:
    """Its gradient, dense, and placed as the parameter is; zeros if it has none.

    All ranks that share a DTensor call it.
    """
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return placed_as(gradient.to_dense() if gradient.is_sparse else gradient, parameter)
