"""Checks the environment variables of launchers, torch and torchbus."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

from torchbus._cli.doctor.finding import Finding
from torchbus._launch import Request
from torchbus._launch.join.places import Place, find
from torchbus._launch.start import inherited
from torchbus._ranks.devices import DevicePlan
from torchbus._redaction import Redactor

LAUNCHERS = {
    "torchrun": "RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|TORCHELASTIC_RUN_ID",
    "horovodrun": "HOROVOD_((LOCAL_)?(RANK|SIZE)|CROSS_RANK|GLOO_RENDEZVOUS_(ADDR|PORT))",
    "SLURM": (
        "SLURM_(JOB_ID|NTASKS|PROCID|LOCALID|NODEID|STEP_ID|STEP_NODELIST|NODELIST|TASKS_PER_NODE)"
    ),
    "MPI": r"(OMPI_COMM_WORLD_|PMI_|MPI_LOCAL|MV2_COMM_WORLD_)\w+",
}
MEETING_POINT = "MASTER_ADDR|MASTER_PORT|NODE_RANK"
SETTINGS = (
    r"(TORCHBUS|GLOO|NCCL|TORCH_NCCL|TORCH_DISTRIBUTED)_\w+|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS"
)


def look() -> list[Finding]:
    """Say which variables are set, and whether they contradict each other."""
    seen = "|".join([*LAUNCHERS.values(), MEETING_POINT])
    launcher = Finding("launcher", shown(matching(seen)), [*_contradictions(), *_meeting_point()])
    stale = (
        ["TORCHBUS_LAUNCH was set, which only a rank that a session started may have: unset it"]
        if inherited.is_rank()
        else []
    )
    return [launcher, Finding("settings", shown(matching(SETTINGS)), [*stale, *_interface()])]


def matching(pattern: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables whose names match."""
    return {name: environ[name] for name in sorted(environ) if re.fullmatch(pattern, name)}


def shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Make variables fit to print: hide secrets, and passwords inside addresses."""
    return {name: str(value) or "(empty)" for name, value in Redactor().plain(variables).items()}


def _contradictions() -> list[str]:
    """Say which launchers contradict each other.

    Inside torchrun, the variables of SLURM or MPI describe the launch of torchrun itself.
    """
    places: dict[str, Place] = {}
    problems: list[str] = []
    for launcher, names in LAUNCHERS.items():
        try:
            place = find(Request(DevicePlan("cpu", 1)), matching(f"{names}|{MEETING_POINT}"))
            places |= {launcher: place} if place is not None else {}
        except ValueError as error:
            problems.append(str(error))
    if (
        "TORCHELASTIC_RUN_ID" not in os.environ
        and len({(place.rank, place.world_size) for place in places.values()}) > 1
    ):
        told = "; ".join(
            f"{place.launched_by} says rank {place.rank} of {place.world_size}"
            for place in places.values()
        )
        problems.append(
            f"launchers contradict each other: {told}. torchbus follows the first: unset the"
            " variables of the other"
        )
    return problems


def _meeting_point() -> list[str]:
    address, port = (
        os.environ.get("MASTER_ADDR", "127.0.0.1"),
        os.environ.get("MASTER_PORT", "29500"),
    )
    problems = []
    if not (port.isdigit() and int(port) < 2**16):
        problems.append(
            f"MASTER_PORT={port!r} is not a port: set it to a number below 65536, the same on all"
            " nodes"
        )
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        problems.append(
            f"MASTER_ADDR={address!r} is not known here ({error}): set it to the address of the"
            " first node"
        )
    return problems


def _interface() -> list[str]:
    asked = os.environ.get("GLOO_SOCKET_IFNAME", "")
    there = [name for _, name in socket.if_nameindex()]
    missing = [name for name in asked.split(",") if name and name not in there]
    return [
        f"GLOO_SOCKET_IFNAME={asked}: there is no interface {name} here, only {', '.join(there)}"
        for name in missing
    ]
