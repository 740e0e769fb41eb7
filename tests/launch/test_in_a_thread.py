"""Loops of processes such as Ray Train's: in another thread than the main one, beside a process
group and sockets of the host. test_ray.py runs Ray itself.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from nodes import run_nodes

from torchbus_testing.scripts import Result, run

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = SCRIPTS / "in_a_thread.py"


def in_threads(folder: Path, how: str, who: int) -> list[Result]:
    return run_nodes([2], LOOP, how, str(who), str(folder))


def test_equal_to_our_own_launch(tmp_path):
    options = {"devices": 2, "accelerator": "cpu", "launch": "fork"}
    ours = run(
        [sys.executable, str(SCRIPTS / "ways.py"), "with_block", "4", json.dumps(options)],
        timeout_s=100,
    )
    first, second = in_threads(tmp_path, "train", -1)
    assert first.ok() and second.ok() and second.stdout == first.stderr == second.stderr == ""
    assert json.loads(first.stdout) == json.loads(ours.ok().stdout.splitlines()[0])


@pytest.mark.slow
def test_a_slow_rank_is_named_with_its_line(tmp_path):
    first, second = in_threads(tmp_path, "sleep", 1)
    assert first.ok() and second.ok()
    assert re.search(
        r"rank 1 is elsewhere, .* at .*in_a_thread\.py:\d+: time\.sleep\(8\)", first.stderr
    )
    assert "rank 0 waits in s.barrier, at " in first.stderr


@pytest.mark.slow
def test_a_failed_rank_ends_the_other(tmp_path):
    """The failed one's process lives on, with its connections: Ray ends it later."""
    first, second = in_threads(tmp_path, "raise", 1)
    assert "ValueError: boom" in second.stderr
    assert first.status == 1 and first.seconds < second.seconds
    ended = "torchbus: rank 0 does not leave native code and is ended by force; it is at\n"
    assert ended in first.stderr and "all_gather" in first.stderr.split(ended)[1]
