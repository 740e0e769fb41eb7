"""Ranks that another launcher has started."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run, start

pytest.importorskip(
    "horovod.torch",
    reason="Horovod is not built: see contrib/horovod/README.md",
    exc_type=ImportError,
)
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["horovod", "ddp"])
def test_ranks_of_horovodrun_are_joined(strategy: str) -> None:
    """Two blocks, one after the other. The code after them runs on both ranks."""
    command = [Path(sys.executable).parent / "horovodrun", "-np", "2", "--gloo", sys.executable]
    result = run([*map(str, command), str(SCRIPTS / "horovodrun.py"), strategy], timeout_s=240)
    assert result.ok().stdout.count("joined horovodrun, close to one process: True True") == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_nodes_on_one_machine() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(SCRIPTS / "two_nodes.py")]
    with (
        start(command, env={**at, "NODE_RANK": "0"}) as first,
        start(command, env={**at, "NODE_RANK": "1"}) as second,
    ):
        results = [one.wait(timeout_s=240).ok().stdout for one in (first, second)]
    assert results == ["True [0, 0, 1, 0, 2]\n", "True [1, 0, 1, 1, 2]\n"]
