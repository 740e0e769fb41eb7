"""A lighthouse, and replicas that run a script, each in the fork of a separate process."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from torchbus_testing.forking import ForkServer
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"
os.environ.setdefault("RUST_LOG", "error")  # torchft reads it once, as it is imported


class Lighthouse:
    """torchft's lighthouse, in this process."""

    def __init__(self, min_replicas: int = 1, heartbeat_timeout_ms: int = 4000) -> None:
        from torchft.coordination import LighthouseServer

        self._server = LighthouseServer(
            bind="127.0.0.1:0",
            min_replicas=min_replicas,
            join_timeout_ms=1000,
            quorum_tick_ms=20,
            heartbeat_timeout_ms=heartbeat_timeout_ms,  # a busy machine sends them late
        )
        port = self._server.address().rsplit(":", 1)[1]
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        self._server.shutdown()


class Replicas:
    """Runs scripts at the same time, with a lighthouse and a common folder."""

    def __init__(
        self, servers: list[ForkServer], url: str, out: Path, scripts: Path = SCRIPTS
    ) -> None:
        self._scripts = scripts
        self.url = url
        self.out = out
        self._free = list(servers)
        self._threads = ThreadPoolExecutor(len(servers))

    def start(
        self, name: str, *args: object, script: str = "loop.py", **how: Any
    ) -> Future[Result]:
        server = self._free.pop()

        def run() -> Result:
            try:
                words = ["--name", name, "--lighthouse", self.url, "--out", self.out, *args]
                return server.run(self._scripts / script, *words, timeout_s=120, **how)
            finally:
                self._free.append(server)

        return self._threads.submit(run)

    def wait_for(self, name: str) -> None:
        while not (self.out / name).exists():
            time.sleep(0.01)

    def end(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.out / f"end-{name}.pt")
        return found

    def close(self) -> None:
        self._threads.shutdown()


# Fixtures, for conftest.py -------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[list[ForkServer]]:
    servers = [ForkServer("torchft", "torchft.checkpointing") for _ in range(2)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def lighthouse() -> Iterator[Lighthouse]:
    found = Lighthouse()
    yield found
    found.close()


@pytest.fixture
def replicas(
    fork_servers: list[ForkServer], lighthouse: Lighthouse, tmp_path: Path
) -> Iterator[Replicas]:
    found = Replicas(fork_servers, lighthouse.url, tmp_path)
    yield found
    found.close()


def skip_without_torchft(items: list[pytest.Item], folder: Path) -> None:
    """Skip the tests of a folder where torchft is not installed."""
    skip = pytest.mark.skip(reason="torchft is not installed: pip install torchft")
    for item in [] if importlib.util.find_spec("torchft") else items:
        if folder in item.path.parents:
            item.add_marker(skip)


# What tests of replicas share ----------------------------------------------------------------------


def killed_and_back(replicas: Replicas, die: str, *words: object) -> tuple[Any, Any]:
    """Kill b at some step while a continues, and restart b before a has ended."""
    hold = ["--hold", 12, *words]
    survivor = replicas.start("a", *hold, "--peers", 2)
    first = replicas.start("b", "--die", die, *hold, "--peers", 2).result()
    assert first.status in (-9, 1) and "Error" not in first.stderr, first.stderr
    (replicas.out / "began-b").unlink()
    second = replicas.start("b", *hold)
    replicas.wait_for("began-b")
    (replicas.out / "go").touch()
    told = survivor.result().ok()
    second.result().ok()
    assert "of now 2" in told.stdout
    return replicas.end("a"), replicas.end("b")


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def used(out: Path) -> dict[int, dict[tuple[int, int], list[int]]]:
    """Return the samples of each committed step, by pass, from the ledgers of all replicas.

    All replicas that have committed a step must list the same samples.
    """
    found: dict[int, dict[tuple[int, int], list[int]]] = {}
    for path in out.glob("ledger-*/rank*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if "committed" in line:
                steps = found.setdefault(line["pass"], {})
                step = (line["from"], line["to"])
                assert steps.setdefault(step, line["committed"]) == line["committed"]
    return found


def assert_each_once(out: Path, samples: int, passes: int) -> None:
    """Each sample was used once in each pass, by one step."""
    found = used(out)
    assert sorted(found) == list(range(passes))
    for steps in found.values():
        ends = sorted(steps)
        assert ends[0][0] == 0
        assert [stop for _, stop in ends[:-1]] == [start for start, _ in ends[1:]]
        assert sorted(index for one in steps.values() for index in one) == list(range(samples))
