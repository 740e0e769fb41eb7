"""Horovod's rendezvous: a server that rank 0 runs while the ranks start.

So it is under horovodrun, too. Its server can't be used twice: it may keep addresses of an earlier
start.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchbus.plugin import Context, LaunchError, UsageError

from torchbus_horovod import _compat
from torchbus_launch.relaunch import environment_variables
from torchbus_strategy.groups import guarded_groups

LOOPBACK = "127.0.0.1"
SILENCE_S = 30
"""Horovod's own default. Its threads communicate in every cycle, also while their loops wait."""
CHOSEN = ("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_GLOO_IFACE")
"""Of these, a value of the user's or of horovodrun's wins."""
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Where torch's gloo listens, which the session may have chosen. Without it, gloo asks for the
host's name.
"""
INITIALISED = (
    "hvd.init() was called before the session, as rank {} of {}, and the session has rank {} of {}:"
    " leave hvd.init() out"
)


def open_horovod(session: Context, hvd: Any, mpi: bool) -> None:
    """Start Horovod for the session's ranks, until its end. All ranks call it.

    ``mpi``: its operations run over MPI instead of gloo.
    """
    if not hvd.is_initialized():
        with guarded_groups(session), _place(session, mpi) as place, environment_variables(place):
            session.on_close.callback(_compat.end, hvd)
            _init(session, hvd)
            session.all_gather_object(None)  # all have met
    if (hvd.rank(), hvd.size()) != (session.rank, session.world_size):
        raise UsageError(
            INITIALISED.format(hvd.rank(), hvd.size(), session.rank, session.world_size)
        )


def _init(session: Context, hvd: Any) -> None:
    try:
        hvd.init()
    except ValueError as error:
        raise LaunchError(f"rank {session.rank}: Horovod could not start: {error}") from error


@contextmanager
def _place(session: Context, mpi: bool) -> Iterator[dict[str, str]]:
    """The environment variables with this rank's place for Horovod."""
    if mpi:
        yield {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    elif session.is_main:
        with _compat.rendezvous(_local_address(session)) as port:
            yield _variables(session, [_seen_address(session), port])
    else:
        yield _variables(session, [])


def _variables(session: Context, server: list[object]) -> dict[str, str]:
    """What horovodrun would have set. All ranks call it; rank 0 gives its server."""
    world = session.world
    reported = session.all_gather_object((server, world.node_rank, world.local_rank))
    (address, port), *_ = reported[0]
    alike = sorted(node for _, node, local in reported if local == world.local_rank)
    found = {
        "RANK": world.rank,
        "SIZE": world.world_size,
        "LOCAL_RANK": world.local_rank,
        "LOCAL_SIZE": world.local_world_size,
        "CROSS_RANK": alike.index(world.node_rank),
        "CROSS_SIZE": len(alike),
        "HOSTNAME": f"node{world.node_rank}",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_TIMEOUT_SECONDS": min(round(session.timeout.total_seconds()), SILENCE_S),
    }
    if INTERFACE in os.environ:
        found["GLOO_IFACE"] = os.environ[INTERFACE]
    variables = {f"HOROVOD_{name}": str(value) for name, value in found.items()}
    return variables | {name: os.environ[name] for name in CHOSEN if name in os.environ}


def _seen_address(session: Context) -> str:
    """Where the other ranks reach rank 0."""
    if session.world.one_host:
        return LOOPBACK
    return os.environ.get("MASTER_ADDR") or socket.gethostname()


def _local_address(session: Context) -> str:
    """What rank 0's server listens on: every interface if the address is not this host's own."""
    try:
        number = socket.gethostbyname(_seen_address(session))
        with socket.socket() as attempt:
            attempt.bind((number, 0))
    except OSError:
        return ""
    return number
