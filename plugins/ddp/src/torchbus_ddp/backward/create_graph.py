"""``backward(create_graph=True)``: synchronised gradients that carry a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Count


class MeanOverRanks(torch.autograd.Function):
    """The weighted mean of a tensor over ranks. Backward hands the gradient on as it is: what is computed from the mean
    is the same on all ranks, and the reducer averages the result of this rank's part once more."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, weight: float) -> Tensor:
        mean = local * (weight / dist.get_world_size())
        dist.all_reduce(mean)
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def backward(engine: Any, parameters: Sequence[Tensor], tensors: list[Any], gradients: list[Any], inputs: Any, count: Count) -> None:
    """Run ``engine`` with ``create_graph=True`` and replace the gradients that it makes by their means over ranks.

    One collective. All ranks call it with the same parameters. A gradient that no rank makes stays None.
    """
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    engine(tensors, gradients, True, True, inputs=inputs)
    made = [parameter.grad for parameter in parameters]
    told = [*(float(gradient is not None) for gradient in made), float(count.counted), float(count.weight)]
    *present, counted, weights = _summed(told, parameters[0].device)
    weight = float(count.weight) * (dist.get_world_size() / weights if counted and weights else 1.0)
    packed = torch.cat([_flat(parameter, gradient) for parameter, gradient in zip(parameters, made, strict=True)])
    means = MeanOverRanks.apply(packed, weight).split([parameter.numel() for parameter in parameters])  # type: ignore[no-untyped-call]
    for parameter, mean, old, ranks in zip(parameters, means, kept, present, strict=True):
        new = mean.view_as(parameter) if ranks else None
        parameter.grad = new if old is None else old if new is None else old + new


def _summed(numbers: list[float], device: torch.device) -> list[float]:
    told = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(told)
    summed: list[float] = told.tolist()
    return summed


def _flat(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.reshape(-1)
