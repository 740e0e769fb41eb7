"""The ranks that compute one batch together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context

from torchbus_strategy import options
from torchbus_strategy.checks import first_steps, replicas
from torchbus_strategy.collectives import all_gather_object
from torchbus_strategy.groups import guarded_groups


def divide(session: Context, team: RankGroup) -> options.Division:
    """Return the division among the teams, each of which has a part of the data.

    Outside a divided forward the ranks of a team draw the same random numbers. Teams have different
    samples, and so draw different numbers. A team's weight is that of its samples, and its ranks
    share that weight.
    """
    data = session.world.data
    has_parts = data.parts > 1
    return options.Division(
        replicas.watch_replicas(session) if has_parts else first_steps.SameLoss("dp"),
        stream=data.part if has_parts else None,
        weight=session.world_size / (data.parts * team.size),
        has_parts=has_parts,
    )


SLOTS = 64


@dataclass(frozen=True)
class RankGroup:
    """This process is ``rank`` of ``size`` in ``group`` (None: all ranks).

    Ranks exchange host values in the group ``control``. Its tensors are on the CPU, so that it
    never waits for a GPU.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None
    control: dist.ProcessGroup | None

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every rank, of any dtype.

        All ranks of the team call it with the same shape.
        """
        packed = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        gathered = [torch.empty_like(packed) for _ in range(self.size)]
        dist.all_gather(gathered, packed, group=self.group)
        return [part.view(tensor.dtype).view(tensor.shape) for part in gathered]

    def mean(self, tensor: Tensor, weight: float) -> Tensor:
        """Return the sum over ranks of each tensor times its weight, in the same shape.

        All ranks of the team call it.
        """
        total = tensor.detach() * weight
        dist.all_reduce(total, group=self.group)
        return total

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """All-gather a few integers, the same number on each rank, in one small collective."""
        if len(numbers) > SLOTS:
            return all_gather_object(list(numbers), self.size, self.control)
        mine = torch.zeros(SLOTS, dtype=torch.int64)
        mine[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(gathered, mine, group=self.control)
        return [part[: len(numbers)].tolist() for part in gathered]


def everyone(session: Context) -> RankGroup:
    """Return the group of all ranks. All of them call it."""
    ranks = list(range(session.world_size))
    control = _group(session, [ranks], "gloo") if dist.get_backend() != "gloo" else None
    return RankGroup(session.rank, session.world_size, None, control)


def of_node(session: Context, node_of_rank: Sequence[int]) -> RankGroup:
    """Return the group of this rank's node. All ranks of all nodes call it."""
    teams = [
        [rank for rank, node in enumerate(node_of_rank) if node == one]
        for one in sorted(set(node_of_rank))
    ]
    mine = next(team for team in teams if session.rank in team)
    group = _group(session, teams, None)
    control = _group(session, teams, "gloo") if dist.get_backend() != "gloo" else group
    return RankGroup(mine.index(session.rank), len(mine), group, control)


def _group(session: Context, teams: list[list[int]], backend: str | None) -> dist.ProcessGroup:
    """Make a group for each team, on all ranks, and return this rank's group."""
    with guarded_groups(session):
        groups = [
            dist.new_group(ranks, backend=backend, timeout=session.timeout) for ranks in teams
        ]
    mine: dist.ProcessGroup = next(
        group for group, ranks in zip(groups, teams, strict=True) if session.rank in ranks
    )
    return mine
