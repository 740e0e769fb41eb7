"""A replica that was killed goes on from its checkpoint, if no other has kept the state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_running import Lighthouse, Replicas, assert_each_once, same
from torchbus.testing import ForkServer

pytest.importorskip("torchft", reason="torchft is not installed: pip install torchft")
pytestmark = pytest.mark.slow


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    monkeypatch.setenv("RUST_LOG", "error")
    lighthouse = Lighthouse()
    with ForkServer("torchft") as one, ForkServer("torchft") as other:
        found = Replicas([one, other], lighthouse.url, tmp_path, Path(__file__).parent / "scripts")
        yield found
        found.close()
    lighthouse.close()


@pytest.mark.parametrize("epochs", ["range", "s"])
def test_all_of_them_were_killed(replicas: Replicas, epochs: str) -> None:
    def run(name: str, checkpoint: str, die: str) -> int:
        words = ["--checkpoint", checkpoint, "--die", die, "--epochs", epochs]
        return replicas.start(name, *words, script="replica.py").result().status

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
        both = [replicas.start(name, *words, "--die", die, script="replica.py") for name in "ab"]
        assert [one.result().status for one in both] == [status, status]
    assert same(replicas.end("a")["model"], replicas.end("b")["model"])
    assert_each_once(replicas.out, 64, 3)
