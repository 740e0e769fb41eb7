"""Elastic jobs under torchrun: a killed worker, and a killed node, go on from the last checkpoint,
at the same global batch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchbus_testing.scripts import run, start

SCRIPTS = Path(__file__).parent / "scripts"

LOOP = SCRIPTS / "elastic.py"
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}


def torchrun(port: int, *words: object) -> list[str]:
    meeting = [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
        "--rdzv-id",
        "job",
        "--max-restarts",
        "3",
    ]
    return [sys.executable, "-m", "torch.distributed.run", *meeting, *map(str, words)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def check(folder: Path, ranks: int) -> None:
    """Part of the steps were made before, and none after that has other numbers than
    one process's.
    """
    result = json.loads((folder / "result.json").read_text())
    assert result["apart"] < 1e-9 and result["ranks"] == ranks
    assert 0 < result["steps"] < result["all"]


@pytest.mark.slow
def test_a_killed_worker(tmp_path: Path) -> None:
    result = run(
        torchrun(free_port(), "--nnodes", 1, "--nproc-per-node", 2, LOOP, tmp_path, "worker", 0),
        env=ENVIRONMENT,
        timeout_s=170,
    )
    assert result.ok()
    check(tmp_path, 2)
    assert len(list(tmp_path.glob("began-*"))) == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_node(tmp_path: Path) -> None:
    """The other node goes on by itself."""
    port = free_port()
    words = torchrun(
        port,
        "--nnodes",
        "1:2",
        "--nproc-per-node",
        1,
        "--rdzv-conf",
        "last_call_timeout=5",
        LOOP,
        tmp_path,
        "node",
        0.5,
    )
    with start(words, env=ENVIRONMENT) as first:
        wait_until(
            lambda: is_listening(port), "the agent that serves the rendezvous is the one that stays"
        )
        with start(words, env=ENVIRONMENT) as second:
            wait_until(lambda: any(tmp_path.glob("began-*-2-*")), "two nodes have begun")
            wait_until(lambda: any(tmp_path.glob("checkpoints/[!.]*")), "a checkpoint is written")
            end_with_children(second.pid, signal.SIGKILL)
            second.wait(60)
        result = first.wait(300)
    assert result.ok()
    check(tmp_path, 1)


def wait_until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not met():
        assert time.monotonic() < deadline, f"not so: {what}"
        time.sleep(0.1)


def is_listening(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def end_with_children(pid: int, number: int) -> None:
    """torchrun's workers first know nothing of their agent's end."""
    children = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True
    ).stdout.split()
    for one in (pid, *map(int, children)):
        os.kill(one, number)
