"""A replica that was killed goes on from its checkpoint, if no other has kept the state."""

from __future__ import annotations

from pathlib import Path

import pytest
from ft_running import Replicas, assert_each_once, same

pytestmark = pytest.mark.slow


SCRIPT = Path(__file__).parent / "scripts" / "resumed.py"
HOW = {
    "range": ("--epochs", "range"),
    "s": ("--epochs", "s"),
    "windows": ("--epochs", "s", "--windows", 3, "--drop", 0),
    "in windows": ("--epochs", "s", "--windows", 2, "--drop", 0),
    "fsdp": ("--epochs", "s", "--inside", "fsdp", "--devices", 2),
}


@pytest.mark.parametrize("how", HOW)
def test_all_of_them_were_killed(replicas: Replicas, how: str) -> None:
    def run(name: str, checkpoint: str, die: str) -> int:
        words = ["--checkpoint", checkpoint, "--die", die, *HOW[how]]
        return replicas.start(name, *words, script=SCRIPT).result().status

    assert run("whole", "yes", "no") == 0
    assert run("a", "yes", "yes") == -9
    assert run("a", "yes", "no") == 0
    whole, resumed = replicas.end("whole"), replicas.end("a")
    assert same(whole["model"], resumed["model"])
    assert same(whole["optimizer"], resumed["optimizer"])
    takes = [path.read_text().count("weight") for path in replicas.out.glob("ledger-a-*/*")]
    assert min(takes) < 24, "the second run went on in the middle"
    assert resumed["steps"] == 24


def test_two_replicas_were_killed(replicas: Replicas) -> None:
    words = ["--checkpoint", "yes", "--epochs", "range", "--least", 2]
    for status, die in ((-9, "yes"), (0, "no")):
        both = [replicas.start(name, *words, "--die", die, script=SCRIPT) for name in "ab"]
        assert [one.result().status for one in both] == [status, status]
    assert same(replicas.end("a")["model"], replicas.end("b")["model"])
    assert_each_once(replicas.out, 64, 3)
