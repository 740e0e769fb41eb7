"""Joins the ranks of a launcher, and finds the other nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torchbus.errors import LaunchError, UsageError
from torchbus.world import World

from torchbus_launch import inherited, listening, secret
from torchbus_launch.job import Job
from torchbus_launch.launched_rank import LaunchedRank
from torchbus_launch.request import LaunchRequest
from torchbus_launch.store import SealedStore
from torchbus_launch.variables import PORTS, host, integer


@dataclass(frozen=True)
class Nodes:
    """This node's place. ``port`` 0 lets the system choose a free one (one node only)."""

    node_rank: int
    num_nodes: int
    local_world_size: int
    address: str
    port: int

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.local_world_size

    @property
    def first_rank(self) -> int:
        return self.node_rank * self.local_world_size

    def open_store(self, request: LaunchRequest) -> SealedStore:
        """Serve the store on the first node; connect to it on the others.

        Local rank 0 of every node calls it.
        """
        key = (
            secret.new()
            if self.num_nodes == 1
            else secret.derived(self.port, self.world_size, job="")
        )
        try:
            return SealedStore(self._connect(request), key)
        except (RuntimeError, OSError) as error:
            raise LaunchError(
                f"node {self.node_rank} could not open {self.address}:{self.port}:"
                f" {str(error).splitlines()[0]}. If the port is in use, set MASTER_PORT to a free"
                " one; otherwise check MASTER_ADDR"
            ) from None

    def _connect(self, request: LaunchRequest) -> dist.TCPStore:
        session = None if self.num_nodes == 1 else next(listening.sessions)
        if session is None or self.node_rank == 0:
            return listening.serve(
                self.address, self.port, self.num_nodes == 1, request.timeout, session
            )
        return listening.reach(self.address, self.port, request.timeout, session)

    def world(
        self, local_rank: int, request: LaunchRequest, store: SealedStore, launched_by: str
    ) -> World:
        """Return the world as local rank ``local_rank`` of this node sees it."""
        place = self.place(local_rank, store.port, launched_by)
        return _world(place, request.devices.device(local_rank), store)

    def place(self, local_rank: int, port: int, launched_by: str = "session") -> LaunchedRank:
        """Return the place of local rank ``local_rank``, with the store at ``port``."""
        return LaunchedRank(
            launched_by,
            self.first_rank + local_rank,
            self.world_size,
            local_rank,
            self.local_world_size,
            self.node_rank,
            self.address,
            port,
            self.num_nodes == 1,
        )


def find_nodes(request: LaunchRequest) -> Nodes:
    """Return this node's place among ``num_nodes``.

    Raises UsageError if an environment variable is missing or invalid.
    """
    if request.num_nodes == 1:
        return Nodes(0, 1, request.devices.count, listening.LOOPBACK, 0)
    missing = [name for name in ("MASTER_ADDR", "NODE_RANK") if name not in os.environ]
    if missing:
        raise UsageError(
            f"num_nodes={request.num_nodes} without {' and '.join(missing)}: set MASTER_ADDR (the"
            " first node), MASTER_PORT and NODE_RANK on each node, or start with torchrun or SLURM"
        )
    return Nodes(
        integer(os.environ, "NODE_RANK", among=range(request.num_nodes)),
        request.num_nodes,
        request.devices.count,
        host(os.environ, "MASTER_ADDR"),
        integer(os.environ, "MASTER_PORT", 29500, PORTS),
    )


# the store exists before this rank starts: either it answers soon, or rank 0 has gone
SERVED_WITHIN = timedelta(minutes=5)


def join(place: LaunchedRank, request: LaunchRequest) -> Job:
    """Connect to the ranks' store, and return this rank's job; raises LaunchError."""
    device = request.devices.device(
        place.local_rank if request.devices.count > place.local_rank else 0
    )
    mine = place.launched_by == "session"
    if mine:
        inherited.take()
    try:
        store = _started_by_us(place, request) if mine else _started_by_another(place, request)
    except LaunchError:
        raise
    except (RuntimeError, OSError) as error:
        raise _unreached(place, error) from None
    parent_pid = inherited.parent_pid() if mine else None
    world = _world(place, device, store)
    return Job(world, request, ends_with_block=mine, parent_pid=parent_pid)


def _unreached(place: LaunchedRank, error: Exception) -> LaunchError:
    return LaunchError(
        f"rank {place.rank} could not reach the others at {place.address}:{place.port}"
        f" ({place.launched_by}): {error}. If the port is in use, set MASTER_PORT to a free"
        " one; otherwise check MASTER_ADDR and the firewall"
    )


def _world(place: LaunchedRank, device: torch.device, store: SealedStore) -> World:
    return World(
        place.rank,
        place.world_size,
        place.local_rank,
        place.local_world_size,
        place.node_rank,
        place.launched_by,
        device,
        store,
        one_host=place.one_host,
    )


def _started_by_us(place: LaunchedRank, request: LaunchRequest) -> SealedStore:
    raw = dist.TCPStore(place.address, place.port, is_master=False, timeout=SERVED_WITHIN)
    raw.set_timeout(request.timeout)
    return SealedStore(raw, inherited.key())


def _started_by_another(place: LaunchedRank, request: LaunchRequest) -> SealedStore:
    """Open the launcher's store: torchrun's agent serves it, otherwise rank 0 does.

    The agent's store outlives a session.
    """
    key, session = secret.derived(place.port, place.world_size, place.job), next(listening.sessions)
    address = listening.LOOPBACK if place.one_host else place.address
    if place.launched_by == "torchrun":
        raw = _unprefixed(
            next(dist.rendezvous("env://", place.rank, place.world_size, timeout=request.timeout))[
                0
            ]
        )
    elif place.rank == 0:
        raw = listening.serve(address, place.port, place.one_host, request.timeout, session)
    else:
        raw = listening.reach(address, place.port, request.timeout, session)
    store = SealedStore(
        raw, key, f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/session {session}/"
    )
    secret.compare(
        store, place.rank, range(place.world_size), takes_seat=place.launched_by != "torchrun"
    )
    return SealedStore(raw, secret.drawn(store, place.rank, place.world_size), store.prefix)


def _unprefixed(store: dist.Store) -> dist.Store:
    """Return the store without prefixes: some versions of torch prefix names by the attempt."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store
