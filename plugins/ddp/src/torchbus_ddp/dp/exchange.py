"""From the whole batch to this rank's rows and back, with gradients of any order.

A tensor outside a divided forward is the same on all ranks of the team, and so is its gradient.
Inside, each rank has its own rows, and gradients are multiplied by the size of the team. So the
*mean* over ranks is exact for parameters, whether they were used inside, outside, or both.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchbus_ddp.dp.rows import Rows
from torchbus_ddp.dp.team import Team


class Exchange(Protocol):
    """What forward keeps for backward: how the rows are divided."""

    rows: Rows
    dim: int
    team: Team


class Scaling(Protocol):
    """What forward keeps for backward: the factor of the gradient."""

    factor: float


class Part(torch.autograd.Function):
    """This rank's rows of a tensor that all ranks have."""

    @staticmethod
    def forward(ctx: Exchange, whole: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
        ctx.rows, ctx.dim, ctx.team = rows, dim, team
        return rows.take(whole, dim).clone()

    @staticmethod
    def backward(ctx: Exchange, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        whole = joined(gradients[0], ctx.rows, ctx.dim, ctx.team)
        return whole / ctx.team.size, None, None, None


class Joined(torch.autograd.Function):
    """The rows of all ranks, on all ranks."""

    @staticmethod
    def forward(ctx: Exchange, local: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
        ctx.rows, ctx.dim, ctx.team = rows, dim, team
        first = local.movedim(dim, 0)
        padded = first.new_zeros((max(rows.sizes), *first.shape[1:]))
        padded[: rows.own] = first[: rows.own]
        parts = [
            part[:size] for part, size in zip(team.all_gather(padded), rows.sizes, strict=True)
        ]
        return torch.cat(parts).movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: Exchange, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        local = _part(gradients[0], ctx.rows, ctx.dim, ctx.team)
        return local * (ctx.team.size if ctx.rows.own else 0), None, None, None


class Averaged(torch.autograd.Function):
    """The weighted mean over ranks of a number, or of a tensor without rows."""

    @staticmethod
    def forward(ctx: Scaling, local: Tensor, weight: float, team: Team) -> Tensor:
        ctx.factor = weight * team.size
        return team.mean(local, weight)

    @staticmethod
    def backward(ctx: Scaling, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * ctx.factor, None, None


def part(whole: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
    """This rank's rows. If the tensor requires a gradient, its backward is a collective."""
    if whole.requires_grad and torch.is_grad_enabled():
        return _part(whole, rows, dim, team)
    return rows.take(whole, dim)


def _part(whole: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
    own: Tensor = Part.apply(whole, rows, dim, team)  # type: ignore[no-untyped-call]
    return own


def joined(local: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
    """Gather all rows in order, ``rows.sizes[r]`` from each rank r. All ranks call it."""
    return Joined.apply(local, rows, dim, team)  # type: ignore[no-untyped-call, no-any-return]


def averaged(local: Tensor, weight: float, team: Team) -> Tensor:
    """The sum of weight times tensor over ranks. A collective."""
    return Averaged.apply(local, weight, team)  # type: ignore[no-untyped-call, no-any-return]
