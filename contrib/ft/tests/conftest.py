"""Fixtures of the tests of replicas."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_running import Lighthouse, Replicas
from torchbus.testing import ForkServer

HAS_TORCHFT = importlib.util.find_spec("torchft") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="torchft is not installed: pip install torchft")
    for item in [] if HAS_TORCHFT else items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[list[ForkServer]]:
    before = os.environ.get("RUST_LOG")
    os.environ["RUST_LOG"] = "error"
    servers = [ForkServer("torchft", "torchft.checkpointing") for _ in range(2)]
    yield servers
    for server in servers:
        server.close()
    os.environ.pop("RUST_LOG")
    if before is not None:
        os.environ["RUST_LOG"] = before


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
