"""A process that a rank forks has torch's process group of that rank: ranks of its own are refused,
and a session of one process works there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result, run

SCRIPT = Path(__file__).parent / "scripts" / "forked_by_a_rank.py"


def check(result: Result, *after: str) -> None:
    assert result.ok().stdout.splitlines() == [
        "this process was forked by rank 0, and can't start ranks: end the block before"
        " it is forked, start it by subprocess, or use strategy=None in it",
        "rank 0 of 1",
        "both go on",
        *after,
    ]


def test_ranks_of_its_own_are_refused():
    check(fork_script(SCRIPT, "fork"), "rank 0 of 2")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "torchbus run"])
def test_ranks_of_its_own_are_refused_whatever_started_the_rank(way):
    command = [sys.executable, str(SCRIPT), way]
    if way == "torchbus run":
        command[1:1] = ["-m", "torchbus", "run", "--devices", "2", "-o", "accelerator=cpu"]
        check(run(command))
    else:
        check(run(command), "rank 0 of 2")
