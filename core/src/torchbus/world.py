"""The ranks of a session (``World``), their collectives, store and mesh, and each rank's share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from torchbus.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.device_mesh import DeviceMesh


Devices = int | str | list[int]


class SharedStore(Protocol):
    """The key-value store that all ranks of a job share. It ignores what other processes write.

    All methods raise RuntimeError if the store has gone.
    """

    key: bytes

    def set(self, name: str, value: str | bytes) -> None:
        """Set the value."""

    def set_all(self, values: Mapping[str, str | bytes]) -> None:
        """Set the values in one request."""

    def read(self, name: str) -> bytes | None:
        """Return the value, or None if there is none; do not wait."""

    def get(self, name: str) -> bytes:
        """Wait for the value, and return it."""

    def check(self, names: Sequence[str]) -> bool:
        """Return whether all of these values are there."""

    def read_all(self, names: Sequence[str]) -> list[bytes] | None:
        """Return the values, or None if one of them is missing; do not wait."""

    def compare_set(self, name: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set the value if it equals ``expected`` ("" if missing); return the value it has now."""

    def add(self, name: str, amount: int) -> int:
        """Add to a counter, and return the sum."""

    def delete_key(self, name: str) -> bool:
        """Remove the value; return whether there was one."""

    def within(self, word: str) -> SharedStore:
        """Return the part of the store whose names begin with a word."""

    def of_groups(self, word: str) -> Store:
        """Return torch's own store for the messages of process groups."""


class DataPlace(NamedTuple):
    """A rank's place in the data: part ``part`` of ``parts`` of every global batch.

    Ranks that compute one part together have the same place.
    """

    part: int
    parts: int


@dataclass(frozen=True)
class World:
    """The ranks of a session, as this process sees them.

    ``launched_by`` is what started the ranks: "nobody", "session", "fork", "torchrun", "SLURM",
    "MPI", "horovodrun" or "environment". ``store`` is the key-value store that all ranks share, or
    None in a world of one. ``member`` is this rank's number among the ranks that compute its part
    of the data together. ``one_host`` is True if all ranks are known to be on this host. ``shape``
    holds the sizes of the mesh's dimensions, if a strategy has arranged the ranks. ``open_mesh``
    makes the mesh while there is a process group. ``divides_anew`` is True if other sessions, which
    come and go, share the data: then ``data`` changes between two steps.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launched_by: str = "nobody"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: SharedStore | None = None
    data_place: DataPlace | None = None
    member: int = 0
    one_host: bool = False
    shape: tuple[tuple[str, int], ...] = ()
    open_mesh: Callable[[World], DeviceMesh] | None = field(default=None, repr=False, compare=False)
    divides_anew: bool = False

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The ranks as torch's DeviceMesh, with named dimensions.

        They are ("dp",) if every rank has a different part of the data, ("dp", "tp") with tensor
        parallelism, ("dp", "pp") with pipelines, and ("dp_replicate", "dp_shard") for fsdp with
        hybrid=True. The first use makes the process groups: all ranks must make it at one place.

        Raises UsageError outside of the block, if there is one rank, or if the ranks form no mesh.
        """
        if self.open_mesh is None:
            raise UsageError(
                "world.mesh: there is no process group, because there is one rank or the block does"
                " not run. Ask for it inside the block, if world_size > 1"
            )
        return self.open_mesh(self)

    @cached_property
    def data(self) -> DataPlace:
        """Which part of the data this rank gets.

        It differs from rank to rank, unless the strategy sets ``data_place``.
        """
        return self.data_place or DataPlace(self.rank, self.world_size)

    @property
    def shared(self) -> SharedStore:
        """The store. Only a world of several ranks has one, until the session ends."""
        assert self.store is not None
        return self.store

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def num_nodes(self) -> int:
        """The number of machines, if each has as many ranks as this one."""
        return self.world_size // self.local_world_size


@dataclass(frozen=True)
class Share:
    """The share of the global batch that this rank holds.

    The plugin that divides the data sets the share when the loop gets a batch. The strategy reads
    it at ``backward``.

    ``weight`` is how much this rank's gradient counts in the mean over ranks: n_rank * world_size /
    n_all. It is 0.0 for a rank that has no samples and repeats some. ``position`` is a number that
    is equal on all ranks at the same point of the same order of data. ``indices`` are the data
    set's indices of this rank's batch. ``count`` is n_all, or 0 if it was not counted.
    """

    weight: float = 1.0
    position: int = 0
    indices: Sequence[object] = ()
    count: int = 0


class Collectives(Protocol):
    """Computes what the methods of ``Ranks`` return. All ranks must call each method."""

    def reduce(self, value: torch.Tensor | float, op: str) -> torch.Tensor:
        """Return a tensor with the shape and dtype of ``Ranks.reduce``."""

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Return each rank's tensor, with its own shape."""

    def all_gather_object(self, value: object) -> list[Any]:
        """Return each rank's object."""


class Ranks:
    """Properties of the session's ``world``: rank, world size, nodes."""

    world: World

    @property
    def collectives(self) -> Collectives:
        """The object that computes ``reduce`` and ``all_gather``, made on first use."""
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

        Dtype and shape must be the same on all ranks, except for dim 0. All ranks must call it.
        Raises UsageError for other shapes.
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
