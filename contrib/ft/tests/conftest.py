"""Fixtures of the tests of replicas."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from ft_running import fork_servers, lighthouse, replicas

__all__ = ["fork_servers", "lighthouse", "replicas"]

HAS_TORCHFT = importlib.util.find_spec("torchft") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="torchft is not installed: pip install torchft")
    for item in [] if HAS_TORCHFT else items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)
