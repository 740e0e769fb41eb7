"""Connects a rank that another process started to the store of its job."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from torchbus._launch.job import Job
from torchbus._launch.join.places import Place
from torchbus._launch.request import Request
from torchbus._launch.start import inherited
from torchbus._launch.store import listening, secret
from torchbus._launch.store.sealed import SealedStore
from torchbus._ranks.world import SharedStore, World
from torchbus.errors import LaunchError

# the store exists before this rank starts: either it answers soon, or rank 0 has gone
SERVED_WITHIN = timedelta(minutes=5)


def join(place: Place, request: Request) -> Job:
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


def _unreached(place: Place, error: Exception) -> LaunchError:
    return LaunchError(
        f"rank {place.rank} could not reach the others at {place.address}:{place.port}"
        f" ({place.launched_by}): {error}. If the port is in use, set MASTER_PORT to a free"
        " one; otherwise check MASTER_ADDR and the firewall"
    )


def _world(place: Place, device: torch.device, store: SharedStore) -> World:
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


def _started_by_us(place: Place, request: Request) -> SharedStore:
    raw = dist.TCPStore(place.address, place.port, is_master=False, timeout=SERVED_WITHIN)
    raw.set_timeout(request.timeout)
    return SealedStore(raw, inherited.key())


def _started_by_another(place: Place, request: Request) -> SharedStore:
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
