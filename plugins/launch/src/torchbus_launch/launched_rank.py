"""Reads a rank's place from the variables of torchrun, SLURM, MPI and other launchers."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from torchbus.errors import UsageError

from torchbus_launch import inherited
from torchbus_launch.request import LaunchRequest
from torchbus_launch.variables import COUNTS, PORTS, host, integer

MPI_PREFIXES = (
    ("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_LOCAL_"),
    ("MV2_COMM_WORLD_", "MV2_COMM_WORLD_LOCAL_"),
    ("PMI_", "MPI_LOCAL"),
)


@dataclass(frozen=True)
class LaunchedRank:
    """This rank's place, as a launcher's variables give it."""

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
    """The launcher's unique name for the job, which all its ranks share; "" without one."""


def find(request: LaunchRequest, environ: Mapping[str, str] = os.environ) -> LaunchedRank | None:
    """Return the place that a launcher gives this process; None without a launcher.

    Raises UsageError if the variables contradict each other.
    """
    place = _place(environ)
    if place is not None:
        _check(place, request)
    return place


def world_size_seen() -> int:
    """Return the number of ranks in a launcher's variables; 1 without a launcher."""
    place = _place(os.environ)
    return place.world_size if place is not None else 1


def _place(env: Mapping[str, str]) -> LaunchedRank | None:
    return _inherited() or _torchrun(env) or _horovodrun(env) or _slurm(env) or _mpi(env)


def _inherited() -> LaunchedRank | None:
    given = inherited.place()
    return None if given is None else LaunchedRank("session", **given)


def _torchrun(env: Mapping[str, str]) -> LaunchedRank | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        if ("RANK" in env) != ("WORLD_SIZE" in env):
            raise UsageError(
                "only one of RANK and WORLD_SIZE is set: unset it, or start the script with"
                " torchrun"
            )
        return None
    world_size = integer(env, "WORLD_SIZE", among=COUNTS)
    rank = integer(env, "RANK", among=range(world_size))
    if world_size > 1 and "MASTER_ADDR" not in env:
        raise UsageError(
            f"RANK={rank} and WORLD_SIZE={world_size} are set, but MASTER_ADDR is not: set it, or"
            " use torchrun"
        )
    here = integer(env, "LOCAL_WORLD_SIZE", world_size, _up_to(world_size))
    return LaunchedRank(
        "torchrun" if "TORCHELASTIC_RUN_ID" in env else "environment",
        rank,
        world_size,
        integer(env, "LOCAL_RANK", rank % here, range(here)),
        here,
        integer(env, "GROUP_RANK", rank // here),
        host(env, "MASTER_ADDR"),
        integer(env, "MASTER_PORT", 29500, PORTS),
        "LOCAL_WORLD_SIZE" in env and here == world_size,
        env.get("TORCHELASTIC_RUN_ID", ""),
    )


def _horovodrun(env: Mapping[str, str]) -> LaunchedRank | None:
    if "HOROVOD_RANK" not in env or integer(env, "HOROVOD_SIZE", 1) < 2:
        return None
    world_size = integer(env, "HOROVOD_SIZE")
    here = integer(env, "HOROVOD_LOCAL_SIZE", world_size, _up_to(world_size))
    if here < world_size and "MASTER_ADDR" not in env:
        raise UsageError(
            "horovodrun started ranks on several hosts: give the first one's address,"
            " MASTER_ADDR=... horovodrun ..."
        )
    job = ":".join(env.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "") for name in ("ADDR", "PORT"))
    return LaunchedRank(
        "horovodrun",
        integer(env, "HOROVOD_RANK", among=range(world_size)),
        world_size,
        integer(env, "HOROVOD_LOCAL_RANK", 0, range(here)),
        here,
        integer(env, "HOROVOD_CROSS_RANK", 0),
        host(env, "MASTER_ADDR"),
        _port(env, job),
        here == world_size,
        job,
    )


INTERACTIVE_STEP = str(0xFFFFFFFA)
"""The step of the shell that ``salloc`` opens (SLURM_INTERACTIVE_STEP in slurm.h): one process,
although SLURM_NTASKS has the number of tasks of the job.
"""


def _slurm(env: Mapping[str, str]) -> LaunchedRank | None:
    if (
        "SLURM_PROCID" not in env
        or env.get("SLURM_STEP_ID", INTERACTIVE_STEP) == INTERACTIVE_STEP
        or integer(env, "SLURM_NTASKS", 1) < 2
    ):
        return None
    world_size = integer(env, "SLURM_NTASKS")
    tasks = env.get("SLURM_TASKS_PER_NODE", str(world_size))
    first = {"SLURM_TASKS_PER_NODE": re.split(r"[(,]", tasks)[0]}
    here = integer(first, "SLURM_TASKS_PER_NODE", among=_up_to(world_size))
    hosts = env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", "127.0.0.1"))
    named = "MASTER_ADDR" if env.get("MASTER_ADDR") else "SLURM_STEP_NODELIST"
    address = host({named: env.get("MASTER_ADDR") or first_host(hosts)}, named)
    job = (
        f"{env.get('SLURM_JOB_ID', '')}.{env['SLURM_STEP_ID']}"
        if "SLURM_HET_SIZE" not in env
        else ""
    )
    return LaunchedRank(
        "SLURM",
        integer(env, "SLURM_PROCID", among=range(world_size)),
        world_size,
        integer(env, "SLURM_LOCALID", 0, range(here)),
        here,
        integer(env, "SLURM_NODEID", 0),
        address,
        _port(env, job),
        not re.search(r"[\[,]", hosts) and here == world_size,
        job,
    )


def _up_to(world_size: int) -> range:
    return range(1, world_size + 1)


def _port(env: Mapping[str, str], job: str) -> int:
    """Return MASTER_PORT, or a port derived from the job's name, so that jobs on one host use
    different ports.

    A derived port is below the ephemeral ports of the system (32768 and more).
    """
    chosen = 20000 + zlib.crc32(job.encode()) % 12000 if job else 29500
    return integer(env, "MASTER_PORT", chosen, PORTS)


def first_host(nodelist: str) -> str:
    """Return the first host of a SLURM node list: "gpu07" for "gpu[07-09,12],x1"."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", nodelist)
    return (match.group(1) + (match.group(2) or "")) if match else nodelist


def _mpi(env: Mapping[str, str]) -> LaunchedRank | None:
    for prefix, local in MPI_PREFIXES:
        if f"{prefix}RANK" in env and integer(env, f"{prefix}SIZE", 1) > 1:
            return _of_mpi(env, prefix, local)
    return None


def _of_mpi(env: Mapping[str, str], prefix: str, local: str) -> LaunchedRank:
    world_size = integer(env, f"{prefix}SIZE")
    rank = integer(env, f"{prefix}RANK", among=range(world_size))
    among = _up_to(world_size)
    here = integer(env, f"{local}SIZE", integer(env, "MPI_LOCALNRANKS", world_size, among), among)
    if here < world_size and "MASTER_ADDR" not in env:
        raise UsageError(
            "mpirun started ranks on several hosts: pass the first one's address, mpirun -x"
            " MASTER_ADDR=..."
        )
    local_rank = integer(env, "MPI_LOCALRANKID", rank % here, range(here))
    job = env.get("PMIX_NAMESPACE", "")
    return LaunchedRank(
        "MPI",
        rank,
        world_size,
        integer(env, f"{local}RANK", local_rank, range(here)),
        here,
        rank // here,
        host(env, "MASTER_ADDR"),
        _port(env, job),
        here == world_size and (f"{local}SIZE" in env or "MPI_LOCALNRANKS" in env),
        job,
    )


def _check(place: LaunchedRank, request: LaunchRequest) -> None:
    if (
        place.launched_by != "session"
        and request.explicit_devices
        and request.devices.count != place.local_world_size
    ):
        raise UsageError(
            f"devices asks for {request.devices.count} on this node, but {place.launched_by}"
            f" started {place.local_world_size}: remove devices, or start that number of processes"
        )
