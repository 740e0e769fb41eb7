"""From the whole batch to this rank's rows and back, with gradients of any order.

A tensor outside a divided forward is the same on all ranks of the team, and so is its gradient. Inside, each rank has its own
rows, and there a gradient is the true one times the size of the team: then the *mean* over ranks is right for parameters, whether
they were used inside, outside, or both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchbus_ddp.dp.rows import Rows
from torchbus_ddp.dp.team import Team


class Part(torch.autograd.Function):
    """This rank's rows of a tensor that all ranks have."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
        ctx.rows, ctx.dim, ctx.team = rows, dim, team
        return rows.take(whole, dim).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return joined(gradient, ctx.rows, ctx.dim, ctx.team) / ctx.team.size, None, None, None


class Joined(torch.autograd.Function):
    """The rows of all ranks, on all ranks."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
        ctx.rows, ctx.dim, ctx.team = rows, dim, team
        first = local.movedim(dim, 0)
        padded = first.new_zeros((max(rows.sizes), *first.shape[1:]))
        padded[: rows.own] = first[: rows.own]
        parts = [part[:size] for part, size in zip(team.all_gather(padded), rows.sizes, strict=True)]
        return torch.cat(parts).movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        rows = ctx.rows
        local = Part.apply(gradient, rows, ctx.dim, ctx.team)  # type: ignore[no-untyped-call]
        return local * (ctx.team.size if rows.own else 0), None, None, None


class Averaged(torch.autograd.Function):
    """A number, or a tensor without rows: the mean over ranks, each with its weight."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, weight: float, team: Team) -> Tensor:
        ctx.factor = weight * team.size
        return team.mean(local, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * ctx.factor, None, None


def part(whole: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
    """This rank's rows; a collective in backward where the tensor requires a gradient."""
    if whole.requires_grad and torch.is_grad_enabled():
        return Part.apply(whole, rows, dim, team)  # type: ignore[no-untyped-call, no-any-return]
    return rows.take(whole, dim)


def joined(local: Tensor, rows: Rows, dim: int, team: Team) -> Tensor:
    """All rows, in order, from ``rows.sizes[r]`` of each rank r. A collective."""
    return Joined.apply(local, rows, dim, team)  # type: ignore[no-untyped-call, no-any-return]


def averaged(local: Tensor, weight: float, team: Team) -> Tensor:
    """The sum of weight times tensor over ranks. A collective."""
    return Averaged.apply(local, weight, team)  # type: ignore[no-untyped-call, no-any-return]
