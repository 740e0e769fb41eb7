"""``backward(create_graph=True)``: synchronised gradients that carry a graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torchbus._loss.count import Count
from torchbus._strategy.backward.engine import Engine, Roots


class MeanOverRanks(torch.autograd.Function):
    """The weighted mean of a tensor over ranks.

    Backward returns the gradient unchanged. All ranks compute the same from the mean, and the
    reducer averages the gradients of their parts in the next backward.
    """

    @staticmethod
    def forward(ctx: object, local: Tensor, weight: float) -> Tensor:
        mean = local * (weight / dist.get_world_size())
        dist.all_reduce(mean)
        return mean

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def backward(engine: Engine, parameters: Sequence[Tensor], roots: Roots, count: Count) -> None:
    """Run ``engine`` with ``create_graph=True``, and average its gradients over ranks.

    All ranks call it with the same parameters. A gradient that no rank makes stays None.
    """
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    engine(roots.tensors, roots.gradients, True, True, inputs=roots.inputs)
    made = [parameter.grad for parameter in parameters]
    told = [
        *(float(gradient is not None) for gradient in made),
        float(count.counted),
        float(count.weight),
    ]
    *present, counted, weights = _summed(told, parameters[0].device)
    weight = float(count.weight) * (dist.get_world_size() / weights if counted and weights else 1.0)
    packed = torch.cat(
        [_flat(parameter, gradient) for parameter, gradient in zip(parameters, made, strict=True)]
    )
    mean_of_all: Tensor = MeanOverRanks.apply(packed, weight)  # type: ignore[no-untyped-call]
    means = mean_of_all.split([parameter.numel() for parameter in parameters])
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
