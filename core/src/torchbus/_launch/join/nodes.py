"""The nodes of a job that the session starts itself.

There is one, or several if the user sets MASTER_ADDR and NODE_RANK.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch.distributed as dist

from torchbus._launch.join.variables import integer
from torchbus._launch.request import Request
from torchbus._launch.store import listening, secret
from torchbus._launch.store.sealed import SealedStore
from torchbus._ranks.world import SharedStore, World
from torchbus.errors import LaunchError, UsageError


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

    def open_store(self, request: Request) -> SharedStore:
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

    def _connect(self, request: Request) -> dist.TCPStore:
        session = None if self.num_nodes == 1 else next(listening.sessions)
        if session is None or self.node_rank == 0:
            return listening.serve(
                self.address, self.port, self.num_nodes == 1, request.timeout, session
            )
        return listening.reach(self.address, self.port, request.timeout, session)

    def world(
        self, local_rank: int, request: Request, store: SharedStore, launched_by: str
    ) -> World:
        """Return the world as local rank ``local_rank`` of this node sees it."""
        return World(
            self.first_rank + local_rank,
            self.world_size,
            local_rank,
            self.local_world_size,
            self.node_rank,
            launched_by,
            request.devices.device(local_rank),
            store,
            one_host=self.num_nodes == 1,
        )


def find_nodes(request: Request) -> Nodes:
    """Return this node's place among ``num_nodes``.

    Raises UsageError if the variables do not fit.
    """
    if request.num_nodes == 1:
        return Nodes(0, 1, request.devices.count, listening.LOOPBACK, 0)
    missing = [name for name in ("MASTER_ADDR", "NODE_RANK") if name not in os.environ]
    if missing:
        raise UsageError(
            f"num_nodes={request.num_nodes} without {' and '.join(missing)}: set MASTER_ADDR (the"
            " first node), MASTER_PORT and NODE_RANK on each node, or start with torchrun or SLURM"
        )
    node_rank = os.environ["NODE_RANK"]
    if not node_rank.isdigit() or int(node_rank) >= request.num_nodes:
        raise UsageError(
            f"NODE_RANK={node_rank} does not fit num_nodes={request.num_nodes}: it counts from 0"
        )
    port = integer(os.environ, "MASTER_PORT", 29500)
    return Nodes(
        int(node_rank), request.num_nodes, request.devices.count, os.environ["MASTER_ADDR"], port
    )
