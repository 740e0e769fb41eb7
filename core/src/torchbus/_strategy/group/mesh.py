"""The ranks as torch's DeviceMesh."""

from __future__ import annotations

import sys
from functools import partial

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchbus._compat.dtensors import forget_meshes
from torchbus._ranks.collectives import all_gather_object
from torchbus._ranks.world import World
from torchbus._session.context import Context
from torchbus._strategy.group.guarded import guarded_groups
from torchbus.errors import UsageError


def offer_mesh(session: Context) -> None:
    """Let ``session.world.mesh`` make it. There is a process group now."""
    session.change_world(open_mesh=partial(_open, session))


def _open(session: Context, world: World) -> DeviceMesh:
    """All ranks call it. Raises UsageError, on all of them, if they expect different meshes."""
    sizes = world.mesh_sizes
    told = all_gather_object(sizes, world.world_size)
    if any(theirs != told[0] for theirs in told):
        rank = next(rank for rank, theirs in enumerate(told) if theirs != told[0])
        raise UsageError(
            f"world.mesh: rank 0 expects {told[0]}, and rank {rank} {told[rank]}. Give every node"
            " as many ranks, and every rank the same options"
        )
    session.on_close.callback(_forget)
    with guarded_groups(session):
        return init_device_mesh(
            world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )


def _forget() -> None:
    """A later session may have another mesh of the same form."""
    if "torch.distributed.tensor" in sys.modules:
        forget_meshes()
