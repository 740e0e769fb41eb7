"""Replicas in two network namespaces, as on two machines."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from ft_running import SCRIPTS, assert_each_once, same
from nodes import two_hosts
from torchbus.testing import start

URL = "http://10.77.0.1:29510"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)
def test_a_replica_on_another_host_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed: pip install torchft")
    words = ["--lighthouse", URL, "--out", str(tmp_path), "--epochs", "2"]
    # in a namespace no server answers for names
    env = {"RUST_LOG": "error", "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    lighthouse = [
        "import time\nfrom torchft.coordination import LighthouseServer\n"
        "server = LighthouseServer('0.0.0.0:29510', 1, 1000, 20, 4000)\ntime.sleep(600)"
    ]

    def replica(name: str, host: list[str]):
        command = [*host, sys.executable, str(SCRIPTS / "chaos.py"), "--name", name, *words]
        return start(command, env=env)

    def wait_for(name: str) -> str:
        while not (tmp_path / name).exists():
            time.sleep(0.05)
        return (tmp_path / name).read_text()

    with (
        two_hosts() as hosts,
        start([*hosts[0], sys.executable, "-c", *lighthouse], env=env),
        replica("a", hosts[0]) as first,
    ):
        with replica("b", hosts[1]) as second:
            wait_for("at-b")
            os.kill(int((tmp_path / "pid-b").read_text()), signal.SIGKILL)
            second.wait()
        (tmp_path / "pid-b").unlink()
        with replica("b", hosts[1]) as again:
            wait_for("pid-b")
            (tmp_path / "enough").touch()
            first.wait(250).ok()
            again.wait(250).ok()
    mine, theirs = (torch.load(tmp_path / f"end-{name}.pt") for name in "ab")
    assert same(mine, theirs)
    assert_each_once(tmp_path, 1200, 2)
