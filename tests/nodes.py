"""For tests: a script on the ranks of several nodes, started as a launcher does."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torchbus_testing.scripts import Result, start


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


@contextlib.contextmanager
def two_hosts() -> Iterator[dict[int, list[str]]]:
    """Two network namespaces with a cable between them, 10.77.0.1 and 10.77.0.2.

    By node, the command that runs something there.
    """
    names = [f"tb{uuid.uuid4().hex[:8]}" for _ in range(2)]
    ends = [f"v{name[2:]}" for name in names]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        ip(
            "link",
            "add",
            ends[0],
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            ends[1],
            "netns",
            names[1],
        )
        for node, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        run = [
            ["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={end}"]
            for name, end in zip(names, ends, strict=True)
        ]
        yield dict(enumerate(run))
