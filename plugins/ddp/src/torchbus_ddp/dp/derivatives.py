"""``torch.autograd.grad`` for parameters: the mean of the gradients over the ranks of a team."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchbus_ddp.dp.team import Team

Inputs = Tensor | Sequence[Tensor]
Gradients = tuple[Tensor | None, ...]


class MeanOverTeam(torch.autograd.Function):
    """The mean of a gradient over the ranks of a team. Backward returns the gradient unchanged.

    A gradient inside a divided forward is multiplied by the size of the team already.
    """

    @staticmethod
    def forward(ctx: object, local: Tensor, team: Team) -> Tensor:
        return team.mean(local, 1 / team.size)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


Grad = Callable[..., Gradients]


def over_team(team: Team) -> Callable[[Grad], Grad]:
    """Make a ``torch.autograd.grad`` that averages. All ranks of the team call what it returns."""

    def make(original: Grad) -> Grad:
        def grad(outputs: Inputs, inputs: Inputs, *args: object, **kwargs: object) -> Gradients:
            gradients = original(outputs, inputs, *args, **kwargs)
            asked = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            return tuple(
                _mean(gradient, team)
                if gradient is not None and isinstance(tensor, nn.Parameter)
                else gradient
                for tensor, gradient in zip(asked, gradients, strict=True)
            )

        return grad

    return make


def _mean(gradient: Tensor, team: Team) -> Tensor:
    mean: Tensor = MeanOverTeam.apply(gradient, team)  # type: ignore[no-untyped-call]
    return mean
