"""Where a rank is: which part of the data its pipeline has, and which stages it has in that."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context

from torchbus_strategy.groups import guarded_groups


@dataclass(frozen=True)
class Team:
    """The ranks of one pipeline. This process is at ``place`` in it.

    ``ranks``: the global ranks by place. ``group``: these ranks, None for all of the session.
    ``replicas``: the ranks at the same place of all pipelines, None if there is one pipeline.
    """

    place: int
    ranks: tuple[int, ...]
    parts: int
    group: dist.ProcessGroup | None
    replicas: dist.ProcessGroup | None

    @property
    def pipelines(self) -> list[list[int]]:
        """The global ranks of each pipeline."""
        return [list(range(part * self.size, (part + 1) * self.size)) for part in range(self.parts)]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def spread(self, tensor: Tensor, place: int) -> Tensor:
        """Send a tensor from one place to the others, which give one like it to write to.

        All ranks of the pipeline call it. Returns the tensor.
        """
        dist.broadcast(tensor, self.ranks[place], group=self.group)
        return tensor


def make_team(session: Context, size: int) -> Team:
    """Pipelines of ``size`` consecutive ranks. All ranks call it."""
    world, place = session.world_size, session.world.member
    part, parts = session.world.data
    if parts == 1:
        return Team(place, tuple(range(world)), 1, None, None)
    pipelines = [list(range(part * size, (part + 1) * size)) for part in range(parts)]
    replicas = [list(range(place, world, size)) for place in range(size)]
    with guarded_groups(session):
        groups = [
            dist.new_group(ranks, timeout=session.timeout) for ranks in [*pipelines, *replicas]
        ]
    return Team(place, tuple(pipelines[part]), parts, groups[part], groups[parts + place])
