"""Autograd functions from the whole batch to this rank's rows and back, differentiable twice.

A tensor outside a divided forward is the same on all ranks of the team, and so is its gradient.
Inside, each rank has its own rows, and gradients are multiplied by the size of the team. So the
*mean* over ranks is exact for parameters, whether they were used inside, outside, or both.
What a forward has joined may be used whole inside a later one (prototypes, class embeddings). Then
its gradient differs between ranks, and the mean of these gradients equals the one outside.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node

from torchbus_ddp.dp.rows import Rows
from torchbus_ddp.dp.team import RankGroup
from torchbus_strategy.graph import children_of, nodes_below


class CommonContext(Protocol):
    """What forward saves for backward about a tensor that is the same on all ranks.

    ``is_over`` says that its backward has run. ``is_used_inside`` says that a divided forward has
    used it whole.
    """

    team: RankGroup
    is_over: bool
    is_used_inside: bool


class RowContext(CommonContext, Protocol):
    """What forward saves for backward about the division of the rows."""

    rows: Rows
    dim: int


class Scaling(CommonContext, Protocol):
    """What forward saves for backward: the factor of the gradient."""

    factor: float


class RankRows(torch.autograd.Function):
    """This rank's rows of a tensor that all ranks have."""

    @staticmethod
    def forward(ctx: RowContext, whole: Tensor, rows: Rows, dim: int, team: RankGroup) -> Tensor:
        ctx.rows, ctx.dim, ctx.team = rows, dim, team
        return rows.take(whole, dim).clone()

    @staticmethod
    def backward(ctx: RowContext, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        whole = joined(gradients[0], ctx.rows, ctx.dim, ctx.team)
        return whole / ctx.team.size, None, None, None


class Joined(torch.autograd.Function):
    """Gathers the rows of all ranks on every rank."""

    @staticmethod
    def forward(ctx: RowContext, local: Tensor, rows: Rows, dim: int, team: RankGroup) -> Tensor:
        ctx.rows, ctx.dim, ctx.team = rows, dim, team
        ctx.is_over = ctx.is_used_inside = False
        first = local.movedim(dim, 0)
        padded = first.new_zeros((max(rows.sizes), *first.shape[1:]))
        padded[: rows.local] = first[: rows.local]
        parts = [
            part[:size] for part, size in zip(team.all_gather(padded), rows.sizes, strict=True)
        ]
        return torch.cat(parts).movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: RowContext, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        local = _part(_of_all(ctx, gradients[0]), ctx.rows, ctx.dim, ctx.team)
        return local * (ctx.team.size if ctx.rows.local else 0), None, None, None


def _of_all(ctx: CommonContext, gradient: Tensor) -> Tensor:
    ctx.is_over = True
    return MeanOverTeam.apply(gradient, ctx.team) if ctx.is_used_inside else gradient  # type: ignore[no-untyped-call, no-any-return]


class MeanOverTeam(torch.autograd.Function):
    """The mean of a gradient over the ranks of a team. Backward returns the gradient unchanged.

    A gradient inside a divided forward is multiplied by the size of the team already.
    """

    @staticmethod
    def forward(ctx: object, local: Tensor, team: RankGroup) -> Tensor:
        return team.mean(local, 1 / team.size)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Averaged(torch.autograd.Function):
    """The weighted mean over ranks of a number, or of a tensor without rows."""

    @staticmethod
    def forward(ctx: Scaling, local: Tensor, weight: float, team: RankGroup) -> Tensor:
        ctx.factor, ctx.team = weight * team.size, team
        ctx.is_over = ctx.is_used_inside = False
        return team.mean(local, weight)

    @staticmethod
    def backward(ctx: Scaling, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _of_all(ctx, gradients[0]) * ctx.factor, None, None


def part(whole: Tensor, rows: Rows, dim: int, team: RankGroup) -> Tensor:
    """Return this rank's rows. If the tensor requires a gradient, backward is a collective."""
    if whole.requires_grad and torch.is_grad_enabled():
        return _part(whole, rows, dim, team)
    return rows.take(whole, dim)


def _part(whole: Tensor, rows: Rows, dim: int, team: RankGroup) -> Tensor:
    mine: Tensor = RankRows.apply(whole, rows, dim, team)  # type: ignore[no-untyped-call]
    return mine


def joined(local: Tensor, rows: Rows, dim: int, team: RankGroup) -> Tensor:
    """Gather all rows in order, ``rows.sizes[r]`` from each rank r. All ranks call it."""
    return Joined.apply(local, rows, dim, team)  # type: ignore[no-untyped-call, no-any-return]


def averaged(local: Tensor, weight: float, team: RankGroup) -> Tensor:
    """Return the sum of weight times tensor over ranks, in the same shape. It is a collective."""
    return Averaged.apply(local, weight, team)  # type: ignore[no-untyped-call, no-any-return]


class Joins:
    """Joined outputs of earlier forwards, whose backward is pending."""

    def __init__(self, team: RankGroup) -> None:
        self._team = team
        self._open: list[weakref.ref[Any]] = []

    def add(self, made: Iterable[Tensor]) -> None:
        """Add tensors that a forward returns on all ranks."""
        self._open = [weakref.ref(node) for node in self._nodes()]
        nodes = [tensor.grad_fn for tensor in made]
        self._open += [weakref.ref(node) for node in nodes if hasattr(node, "is_used_inside")]

    def used_by(self, local: Iterable[Tensor]) -> None:
        """Note which joined outputs the rows of a forward were computed with, on any rank.

        ``local`` has this rank's rows. All ranks call it. It is a collective if there are any
        joined outputs.
        """
        nodes = self._nodes()
        if nodes and torch.is_grad_enabled():
            reached = _reached(tensor.grad_fn for tensor in local)
            reported = self._team.gather([int(node in reached) for node in nodes])
            for node, used in zip(nodes, zip(*reported, strict=True), strict=True):
                node.is_used_inside |= any(used)

    def _nodes(self) -> list[Any]:
        alive = [node for node in (one() for one in self._open) if node is not None]
        return [node for node in alive if not node.is_over]


def _reached(starts: Iterable[Node | None]) -> set[Any]:
    """Return the nodes below ``starts``, up to the first ones that this module has made.

    So a joined tensor of which only rows were used is not among them.
    """
    # only nodes of this module have a team
    below = nodes_below(
        starts, children=lambda node: () if hasattr(node, "team") else children_of(node)
    )
    return set(below)
