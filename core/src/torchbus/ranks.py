"""Rank, world size and collectives of a session."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from torchbus.world import World


class Collectives(Protocol):
    """Collectives of the session's ranks. All ranks must call each method."""

    def reduce(self, value: torch.Tensor | float, op: str) -> torch.Tensor:
        """Return the mean, sum, max or min over ranks, of the value's shape and dtype."""

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensor of every rank, in rank order. Shapes may differ in dim 0."""

    def all_gather_object(self, value: object) -> list[Any]:
        """Return a small picklable object of every rank, in rank order."""


class Ranks:
    """Properties of the session's ``world``: rank, world size, nodes."""

    world: World

    @property
    def collectives(self) -> Collectives:
        """What computes ``reduce`` and ``all_gather``; a session makes it on first use."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """This process's number among all ranks, from 0."""
        return self.world.rank

    @property
    def local_rank(self) -> int:
        """This process's number among the ranks of its node, from 0."""
        return self.world.local_rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.world.world_size

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.world.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.world.is_main

    def reduce(self, value: torch.Tensor | float, op: str = "mean") -> torch.Tensor:
        """Return the "mean", "sum", "max" or "min" over ranks, on this rank's device.

        A tensor of any shape keeps shape and dtype, which all ranks must share; the mean of
        integers is a float. A number is reduced in float64. All ranks must call it. Raises
        UsageError for another ``op`` or value.
        """
        return self.collectives.reduce(value, op)

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensor of every rank, in rank order, on this rank's device, without a graph.

        Dtype and shape must be the same on all ranks, but for dim 0. All ranks must call it. Raises
        UsageError for other shapes.
        """
        return self.collectives.all_gather(value)

    def all_gather_object(self, value: object) -> list[Any]:
        """Return a small picklable object of every rank, in rank order. All ranks must call it."""
        return self.collectives.all_gather_object(value)

    def barrier(self) -> None:
        """Wait until every rank is here. All ranks must call it."""
        if self.world_size > 1:
            torch.distributed.barrier()

    def print(self, *values: object, **options: Any) -> None:
        """Print on rank 0. Any rank may call it."""
        if self.is_main:
            print(*values, **options)
