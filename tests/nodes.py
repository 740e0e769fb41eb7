"""For tests: a script on the ranks of several nodes, started as a launcher does."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchbus.testing import Result, start


def run_nodes(
    nodes: Sequence[int],
    script: Path,
    *args: str,
    address: str = "127.0.0.1",
    prefixes: Mapping[int, list[str]] | None = None,
) -> list[Result]:
    """``nodes``: the number of ranks of each.

    ``prefixes`` is a command to run the ranks of a node under.
    """
    port = _free_port()
    with contextlib.ExitStack() as stack:
        running = []
        for rank in range(sum(nodes)):
            env = _environment(nodes, rank, address, port)
            command = [
                *(prefixes or {}).get(int(env["GROUP_RANK"]), []),
                sys.executable,
                str(script),
                *args,
            ]
            running.append(stack.enter_context(start(command, env=env)))
        return [one.wait(110) for one in running]


def _environment(nodes: Sequence[int], rank: int, address: str, port: int) -> dict[str, str]:
    """What a launcher tells one rank."""
    node = next(index for index in range(len(nodes)) if rank < sum(nodes[: index + 1]))
    place = {
        "RANK": rank,
        "WORLD_SIZE": sum(nodes),
        "LOCAL_RANK": rank - sum(nodes[:node]),
        "LOCAL_WORLD_SIZE": nodes[node],
        "GROUP_RANK": node,
    }
    return {
        **{name: str(value) for name, value in place.items()},
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
