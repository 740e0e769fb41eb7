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

from torchbus_testing.scripts import Script, start

URL = "http://10.77.0.1:29510"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)
def test_a_replica_on_another_host_comes_back(tmp_path: Path) -> None:
    # in a namespace no server answers for names
    env = {"RUST_LOG": "error", "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    lighthouse = (
        "import time\nfrom torchft.coordination import LighthouseServer\n"
        "server = LighthouseServer('0.0.0.0:29510', 1, 1000, 20, 4000)\ntime.sleep(600)"
    )

    def replica(name: str, host: list[str], *more: str) -> Script:
        words = ["--name", name, "--lighthouse", URL, "--out", str(tmp_path), "--hold", "12", *more]
        return start([*host, sys.executable, str(SCRIPTS / "loop.py"), *words], env=env)

    with (
        two_hosts() as hosts,
        start([*hosts[0], sys.executable, "-c", lighthouse], env=env),
        replica("a", hosts[0], "--peers", "2") as first,
    ):
        with replica("b", hosts[1], "--peers", "2", "--die", "step:7") as second:
            assert second.wait(250).status == -signal.SIGKILL
        (tmp_path / "began-b").unlink()
        with replica("b", hosts[1]) as again:
            while not (tmp_path / "began-b").exists():
                time.sleep(0.05)
            (tmp_path / "go").touch()
            first.wait(250).ok()
            again.wait(250).ok()
    mine, theirs = (torch.load(tmp_path / f"end-{name}.pt") for name in "ab")
    assert same(mine["model"], theirs["model"]) and same(mine["optimizer"], theirs["optimizer"])
    assert theirs["steps"] < mine["steps"]
    assert_each_once(tmp_path, 160, 3)
