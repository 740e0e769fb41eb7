"""This process's place among the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torchbus._launch.store.sealed import SealedStore

DEFAULT_TIMEOUT = timedelta(minutes=30)


class DataPlace(NamedTuple):
    """Part ``part`` of ``parts`` of every global batch.

    Ranks that compute one part together have the same place.
    """

    part: int
    parts: int


@dataclass(frozen=True)
class World:
    """The ranks of a session, as this process sees them.

    ``launched_by``: who started the ranks: "nobody", "session", "fork", "torchrun", "SLURM", "MPI"
    or "environment". ``store``: the key-value store that all ranks share, None for a world of one.
    ``member``: this rank's number among the ranks that compute its part of the data together.
    ``one_host``: all ranks are known to be on this host.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launched_by: str = "nobody"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: SealedStore | None = None
    data_place: DataPlace | None = None
    member: int = 0
    one_host: bool = False

    @cached_property
    def data(self) -> DataPlace:
        """Which part of the data this rank gets.

        It is one of its own, unless the strategy sets ``data_place``.
        """
        return self.data_place or DataPlace(self.rank, self.world_size)

    @property
    def shared(self) -> SealedStore:
        """The store. Only a world of several ranks has one, until the session ends."""
        assert self.store is not None
        return self.store

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.local_world_size
