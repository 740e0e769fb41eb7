"""``torch.autograd.grad`` for parameters: outside a divided forward a gradient is the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchbus_ddp.dp.team import Team


class MeanOverTeam(torch.autograd.Function):
    """Each rank's gradient times the size of the team is in it, so its own gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, team: Team) -> Tensor:
        return team.mean(local, 1 / team.size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def over_team(team: Team) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes another ``torch.autograd.grad`` of torch's, which all ranks of the team call alike."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = original(outputs, inputs, *args, **kwargs)
            asked: Sequence[Any] = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            return tuple(
                MeanOverTeam.apply(gradient, team)  # type: ignore[no-untyped-call]
                if gradient is not None and isinstance(tensor, nn.Parameter)
                else gradient
                for tensor, gradient in zip(asked, gradients, strict=True)
            )

        return grad

    return make
