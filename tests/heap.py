"""What is imported before the tests is not looked through again and again.

A session looks through all objects that the garbage collector knows, several times; those of torch
are 300,000, and those of the other libraries of the tests as many. In a forked process each look
also copies their memory. So no session finds a model that a test module makes when it is imported.
"""

from __future__ import annotations

import gc
import importlib
import sys

import pytest

MANY_MODULES = 50
frozen_modules = [0]


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        import hypothesis  # noqa: F401 - it looks for what refers to random generators
        import torch._dynamo  # noqa: F401

        gc.disable()


def pytest_collection_finish() -> None:
    # many tests make sessions that they never enter, which are collected in a later test
    importlib.import_module("torchbus.session")._warn_of_unused = lambda file, line: None
    freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what the tests of a file have imported, such as DeepSpeed, before the next file."""
    is_last_of_file = nextitem is not None and nextitem.path != item.path
    if is_last_of_file and len(sys.modules) > frozen_modules[0] + MANY_MODULES:
        freeze()


def freeze() -> None:
    gc.collect()
    gc.freeze()
    frozen_modules[0] = len(sys.modules)
