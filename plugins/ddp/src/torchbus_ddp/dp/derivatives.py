"""``torch.autograd.grad`` for parameters: the mean of the gradients over the ranks of a team."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from torchbus_ddp.dp.exchange import MeanOverTeam
from torchbus_ddp.dp.team import Team

Inputs = Tensor | Sequence[Tensor]
Gradients = tuple[Tensor | None, ...]


Grad = Callable[..., Gradients]


def over_team(team: Team) -> Callable[[Grad], Grad]:
    """Make a ``torch.autograd.grad`` that averages. All ranks of the team call what it returns."""

    def make(original: Grad) -> Grad:
        def grad(outputs: Inputs, inputs: Inputs, *args: object, **kwargs: object) -> Gradients:
            asked = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            gradients = original(outputs, asked, *args, **kwargs)
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
