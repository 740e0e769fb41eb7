"""Ranks that somebody else started: torchrun, SLURM, mpirun, this session's own rank 0, or variables set by hand."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from torchbus._launch.job import Job
from torchbus._launch.join.variables import integer
from torchbus._launch.request import Request
from torchbus._launch.start import inherited
from torchbus._launch.store import listening, secret
from torchbus._launch.store.sealed import SealedStore
from torchbus._ranks.world import World
from torchbus.errors import LaunchError, UsageError

SERVED_WITHIN = timedelta(minutes=5)  # the store is there before this rank is started: it is reached soon, or rank 0 has gone
MPI_PREFIXES = (
    ("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_LOCAL_"),
    ("MV2_COMM_WORLD_", "MV2_COMM_WORLD_LOCAL_"),
    ("PMI_", "MPI_LOCAL"),
)


@dataclass(frozen=True)
class Place:
    """This rank's place, as a launcher's variables tell it."""

    launched_by: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    port: int
    one_host: bool = False
    job: str = ""
    """The launcher's own name for the job: the same in all its ranks, and no other job's."""


def find(request: Request, environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that a launcher gives this process, None if none is seen. Raises UsageError where it contradicts itself."""
    place = _own() or _torchrun(environ) or _slurm(environ) or _mpi(environ)
    if place is not None:
        _check(place, request)
    return place


def world_size_seen() -> int:
    """Number of ranks that a launcher has started, as its variables tell; 1 without one."""
    place = _own() or _torchrun(os.environ) or _slurm(os.environ) or _mpi(os.environ)
    return place.world_size if place is not None else 1


def join(place: Place, request: Request) -> Job:
    """Connect to the other ranks' store."""
    device = request.devices.device(place.local_rank if request.devices.count > place.local_rank else 0)
    mine = place.launched_by == "session"
    if mine:
        inherited.take()
    try:
        store = _started_by_us(place, request) if mine else _started_by_another(place, request)
    except LaunchError:
        raise
    except (RuntimeError, OSError) as error:
        raise LaunchError(
            f"rank {place.rank} could not reach the others at {place.address}:{place.port} ({place.launched_by}): {error}. "
            "If the port is in use, set MASTER_PORT to a free one; otherwise check MASTER_ADDR and the firewall"
        ) from None
    world = World(
        place.rank, place.world_size, place.local_rank, place.local_world_size, place.node_rank, place.launched_by, device, store,
        one_host=place.one_host,
    )  # fmt: skip
    return Job(world, request, ends_with_block=mine, parent_pid=inherited.parent_pid() if mine else None)


def _started_by_us(place: Place, request: Request) -> SealedStore:
    raw = dist.TCPStore(place.address, place.port, is_master=False, timeout=SERVED_WITHIN)
    raw.set_timeout(request.timeout)
    return SealedStore(raw, inherited.key())


def _started_by_another(place: Place, request: Request) -> SealedStore:
    """torchrun's agent serves a store, which outlives a session; elsewhere rank 0 does."""
    key, session = secret.derived(place.port, place.world_size, place.job), next(listening.sessions)
    address = listening.LOOPBACK if place.one_host else place.address
    if place.launched_by == "torchrun":
        raw = _unprefixed(next(dist.rendezvous("env://", place.rank, place.world_size, timeout=request.timeout))[0])
    elif place.rank == 0:
        raw = listening.serve(address, place.port, place.one_host, request.timeout, session)
    else:
        raw = listening.reach(address, place.port, request.timeout, session)
    store = SealedStore(raw, key, f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/session {session}/")
    secret.compare(store, place.rank, range(place.world_size), takes_seat=place.launched_by != "torchrun")
    return store


def _unprefixed(store: dist.Store) -> dist.Store:
    """Some versions of torch put the attempt before the names; not all do."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _own() -> Place | None:
    given = inherited.place()
    return None if given is None else Place("session", **given)


def _torchrun(env: Mapping[str, str]) -> Place | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        if ("RANK" in env) != ("WORLD_SIZE" in env):
            raise UsageError("only one of RANK and WORLD_SIZE is set: unset it, or start the script with torchrun")
        return None
    rank, world_size = integer(env, "RANK"), integer(env, "WORLD_SIZE")
    if world_size > 1 and "MASTER_ADDR" not in env:
        raise UsageError(f"RANK={rank} and WORLD_SIZE={world_size} are set, but MASTER_ADDR is not: set it, or use torchrun")
    local_world_size = integer(env, "LOCAL_WORLD_SIZE", world_size)
    return Place(
        "torchrun" if "TORCHELASTIC_RUN_ID" in env else "environment",
        rank, world_size, integer(env, "LOCAL_RANK", rank % max(1, local_world_size)), local_world_size,
        integer(env, "GROUP_RANK", rank // max(1, local_world_size)), env.get("MASTER_ADDR", "127.0.0.1"), integer(env, "MASTER_PORT", 29500),
        "LOCAL_WORLD_SIZE" in env and local_world_size == world_size, env.get("TORCHELASTIC_RUN_ID", ""),
    )  # fmt: skip


def _slurm(env: Mapping[str, str]) -> Place | None:
    if "SLURM_PROCID" not in env or "SLURM_STEP_ID" not in env or integer(env, "SLURM_NTASKS", 1) < 2:
        return None
    local = int(re.split(r"[(,]", env.get("SLURM_TASKS_PER_NODE", env["SLURM_NTASKS"]))[0])
    hosts = env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", "127.0.0.1"))
    address = env.get("MASTER_ADDR") or first_host(hosts)
    job = f"{env.get('SLURM_JOB_ID', '')}.{env['SLURM_STEP_ID']}" if "SLURM_HET_SIZE" not in env else ""
    return Place(
        "SLURM", integer(env, "SLURM_PROCID"), integer(env, "SLURM_NTASKS"), integer(env, "SLURM_LOCALID", 0), local,
        integer(env, "SLURM_NODEID", 0), address, _port(env, job), not re.search(r"[\[,]", hosts) and local == integer(env, "SLURM_NTASKS"),
        job,
    )  # fmt: skip


def _port(env: Mapping[str, str], job: str) -> int:
    """Jobs on one host should not meet. Below those that the system gives to anybody (32768 and more)."""
    return integer(env, "MASTER_PORT", 20000 + zlib.crc32(job.encode()) % 12000 if job else 29500)


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list: "gpu[07-09,12],x1" gives "gpu07"."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", nodelist)
    return (match.group(1) + (match.group(2) or "")) if match else nodelist


def _mpi(env: Mapping[str, str]) -> Place | None:
    for prefix, local in MPI_PREFIXES:
        if f"{prefix}RANK" not in env or integer(env, f"{prefix}SIZE", 1) < 2:
            continue
        rank, world_size = integer(env, f"{prefix}RANK"), integer(env, f"{prefix}SIZE")
        local_world_size = integer(env, f"{local}SIZE", integer(env, "MPI_LOCALNRANKS", world_size))
        if local_world_size < world_size and "MASTER_ADDR" not in env:
            raise UsageError("mpirun started ranks on several hosts: pass the first one's address, mpirun -x MASTER_ADDR=...")
        job = env.get("PMIX_NAMESPACE", "")
        return Place(
            "MPI", rank, world_size, integer(env, f"{local}RANK", integer(env, "MPI_LOCALRANKID", rank % max(1, local_world_size))),
            local_world_size, rank // max(1, local_world_size), env.get("MASTER_ADDR", "127.0.0.1"), _port(env, job),
            local_world_size == world_size and (f"{local}SIZE" in env or "MPI_LOCALNRANKS" in env), job,
        )  # fmt: skip
    return None


def _check(place: Place, request: Request) -> None:
    if not 0 <= place.rank < place.world_size:
        raise UsageError(f"{place.launched_by} says rank {place.rank} of {place.world_size}: these contradict each other")
    if not 0 <= place.local_rank < place.local_world_size <= place.world_size:
        raise UsageError(
            f"{place.launched_by} says local rank {place.local_rank} of {place.local_world_size} on this node, "
            f"{place.world_size} in all: these contradict each other"
        )
    if place.launched_by != "session" and request.explicit_devices and request.devices.count != place.local_world_size:
        raise UsageError(
            f"devices asks for {request.devices.count} on this node, but {place.launched_by} started {place.local_world_size}: "
            "leave devices out, or start as many"
        )
