"""Averaging gradients that did not come from a synchronised ``backward``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def average(parameters: Sequence[Tensor], weight: float) -> None:
    """Average the gradients over ranks, in one collective per dtype and device.

    All ranks call it. ``weight`` is this rank's weight in the mean. A gradient that no rank has
    stays None. Averaging gradients that are already equal changes nothing.
    """
    present = torch.tensor(
        [float(parameter.grad is not None) for parameter in parameters], device=parameters[0].device
    )
    dist.all_reduce(present)
    made = [
        parameter for parameter, ranks in zip(parameters, present.tolist(), strict=True) if ranks
    ]
    for kind in {(parameter.dtype, parameter.device) for parameter in made}:
        _average(
            [parameter for parameter in made if (parameter.dtype, parameter.device) == kind], weight
        )


@torch.no_grad()
def _average(parameters: list[Tensor], weight: float) -> None:
    gradients = [_dense(parameter) for parameter in parameters]
    packed = torch.cat([gradient.reshape(-1) for gradient in gradients]) * (
        weight / dist.get_world_size()
    )
    dist.all_reduce(packed)
    for parameter, part in zip(
        parameters, packed.split([gradient.numel() for gradient in gradients]), strict=True
    ):
        parameter.grad = part.view_as(parameter).clone()


def _dense(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
