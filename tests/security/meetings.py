"""Ranks that are started by hand, at a free port."""

from __future__ import annotations

import socket
from pathlib import Path


def environment(rank: int, port: int, home: Path) -> dict[str, str]:
    told = {
        "RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": socket.gethostname(),
        "MASTER_PORT": port,
    }
    return {
        **{name: str(value) for name, value in told.items()},
        "XDG_CONFIG_HOME": str(home),
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
