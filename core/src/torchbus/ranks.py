"""Rank, world size and collectives of a session."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from torchbus.world import World


class Collectives(Protocol):
    """Collectives of the session's ranks. All ranks must call each method."""

    def reduce(self, value: torch.Tensor | float, op: str) -> torch.Tensor:
        """Return the "mean", "sum", "max" or "min" over ranks of a tensor or a number."""

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensor of every rank, in rank order."""

    def all_gather_object(self, value: object) -> list[Any]:
        """Return a small picklable object of every rank, in rank order."""


class Ranks:
    """Properties of the session's ``world``: rank, world size, nodes."""

    world: World

    @property
    def collectives(self) -> Collectives:
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
        """Return the "mean", "sum", "max" or "min" over ranks of a tensor of any shape or a number.

        Numbers are reduced in float64. All ranks call it.
        """
        return self.collectives.reduce(value, op)

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensor of every rank, in rank order. Sizes in dim 0 may differ.

        All ranks call it.
        """
        return self.collectives.all_gather(value)

    def all_gather_object(self, value: object) -> list[Any]:
        """Return a small picklable object of every rank, in rank order. All ranks call it."""
        return self.collectives.all_gather_object(value)

    def barrier(self) -> None:
        """Wait until every rank is here. All ranks call it."""
        if self.world_size > 1:
            torch.distributed.barrier()

    def print(self, *values: object, **options: Any) -> None:
        """Print on rank 0."""
        if self.is_main:
            print(*values, **options)
