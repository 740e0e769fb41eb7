"""Fixtures of the tests of replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from ft_running import fork_servers, lighthouse, replicas, skip_without_torchft

__all__ = ["fork_servers", "lighthouse", "replicas"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_without_torchft(items, Path(__file__).parent)
