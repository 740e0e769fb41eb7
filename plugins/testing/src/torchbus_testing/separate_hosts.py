"""Runs ranks that each believe to be the only one of its host, and may so share one GPU."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from torchbus_testing.scripts import Result, start

SOCKETS = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "2",
}
"""NCCL uses its socket transport. Source: NCCL's page of environment variables."""


def environments(world_size: int) -> list[dict[str, str]]:
    """Return the environment variables of each rank.

    NCCL refuses two ranks of one host on one GPU; ``NCCL_HOSTID`` names the hosts.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    job = SOCKETS | address | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return [
        job
        | {"WORLD_SIZE": str(world_size), "RANK": str(rank), "GROUP_RANK": str(rank)}
        | {"NCCL_HOSTID": f"host{rank}"}
        for rank in range(world_size)
    ]


def run_on_separate_hosts(
    script: Sequence[str], world_size: int, timeout_s: float = 100
) -> list[Result]:
    """Run ``python *script`` as so many ranks; return how each ended, in the order of ranks.

    Raises:
        TimeoutError: a rank does not end within ``timeout_s`` seconds.
    """
    command = [sys.executable, *script]
    with ExitStack() as running:
        ranks = [
            running.enter_context(start(command, env=dict(environment)))
            for environment in environments(world_size)
        ]
        return [rank.wait(timeout_s) for rank in ranks]
