"""What is imported before the tests is not looked through again and again.

A session looks through all objects that the garbage collector knows, several times; those of torch
are 300,000. In a forked process each look also copies their memory.
"""

from __future__ import annotations

import gc

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        import hypothesis  # noqa: F401 - it looks for what refers to random generators
        import torch._dynamo  # noqa: F401

        gc.freeze()
