"""Ranks that are not reached, and ports that are in use."""

from __future__ import annotations

import socket

import pytest
import torch

from torchbus_testing.scripts import run_script

RANKS = """
import os, sys, time
import torch
from torchbus.bus.base import hookimpl
from torchbus import session

class Ranks:
    owns = ("strategy",)

    @hookimpl
    def launch(self, session):
        return session.start_ranks()
"""


def test_a_rank_that_dies_before_it_reaches_the_session_is_told_with_its_words():
    source = (
        RANKS
        + """
if "first" in os.environ:
    raise KeyError("missing on the second run")
os.environ["first"] = "yes"
with session(strategy=Ranks(), devices=2, accelerator="cpu", launch="script"):
    raise AssertionError("the block must not run")
"""
    )
    result = run_script(source)
    assert result.ok(1)
    assert (
        "LaunchError: rank 1 ended with exit status 1 before it reached the session; it wrote:\n"
        in result.stderr
    )
    assert result.stderr.rstrip().endswith("KeyError: 'missing on the second run'")


@pytest.mark.slow
def test_a_rank_that_never_reaches_the_session_is_told():
    source = (
        RANKS
        + """
if "first" in os.environ:
    sys.exit(0)
os.environ["first"] = "yes"
with session(strategy=Ranks(), devices=2, accelerator="cpu", launch="script"):
    raise AssertionError("the block must not run")
"""
    )
    result = run_script(source)
    assert (
        result.ok(1)
        and "LaunchError: rank 1 ended with exit status 0 before it reached the session; it wrote:\n(nothing)"
        in result.stderr
    )


@pytest.fixture
def occupied():
    """A port at which somebody else listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    "variables", [{"NODE_RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "2"}], ids=["nodes", "ranks"]
)
def test_a_port_that_is_in_use(occupied, variables):
    nodes = 2 if "NODE_RANK" in variables else 1
    source = (
        RANKS
        + f"with session(strategy=Ranks(), num_nodes={nodes}, timeout_s=20):\n    raise AssertionError('the block must not run')\n"
    )
    result = run_script(
        source, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(occupied), **variables}
    )
    assert result.ok(1)
    last = next(line for line in result.stderr.splitlines() if "LaunchError: " in line)
    assert (
        f"127.0.0.1:{occupied}" in last
        and "If the port is in use, set MASTER_PORT to a free one" in last
    )


def test_a_forked_rank_that_does_not_begin_is_an_error() -> None:
    late = """
from torchbus_launch import fork
fork.JOINS_WITHIN_S = 1.0
os.register_at_fork(after_in_child=lambda: time.sleep(100))  # it waits for a lock
with session(strategy=Ranks(), devices=2, accelerator="cpu", launch="fork"):
    pass
"""
    result = run_script(RANKS + late)
    assert result.status and "has not begun" in result.stderr and "launch='script'" in result.stderr
    assert not result.orphans


@pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(),
    reason="needs a build for GPUs, on a machine without any",
)
def test_a_second_block_can_fork_after_a_model_was_traced_in_the_first():
    """torch then believes in eight GPUs, and the next backward would start threads for them."""
    source = (
        RANKS
        + """
for _ in range(2):
    with session(strategy=Ranks(), devices=2, accelerator="cpu", launch="fork") as s:
        run = torch.compile(torch.nn.Linear(1, 1), backend="eager")
        run(torch.ones(1, 1)).sum().backward()
print("done")
"""
    )
    assert run_script(source).ok().stdout == "done\n"
