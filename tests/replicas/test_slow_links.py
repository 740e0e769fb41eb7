"""gradient_algorithm="local_sgd" and "diloco" under strategy="ft"."""

from __future__ import annotations

import pytest
from ft_running import Replicas, assert_each_once, same
from torchbus import session
from torchbus.errors import UsageError

ALGORITHMS = ["local_sgd", "diloco"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_models_are_averaged(replicas: Replicas, algorithm: str) -> None:
    words = ["--loop", "local", "--algorithm", algorithm]
    for one in [replicas.start(name, *words, script="kinds.py") for name in "ab"]:
        one.result().ok()
    mine, theirs = map(replicas.end, "ab")
    assert same(mine["model"], theirs["model"])
    assert mine["alike"] != theirs["alike"], "in between, each has its own"
    assert_each_once(replicas.out, 96, 2)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_of_a_dead_replica_are_made_again(replicas: Replicas, algorithm: str) -> None:
    words = ["--loop", "local", "--algorithm", algorithm, "--die", 5]
    first, second = (replicas.start(name, *words, script="kinds.py") for name in "ab")
    assert second.result().status == -9
    first.result().ok()
    assert "1 dropped" in replicas.end("a")["explain"]
    assert_each_once(replicas.out, 96, 2)


def test_diloco_needs_ft() -> None:
    with (
        pytest.raises(UsageError, match="gradient_algorithm='diloco' is for replicas"),
        session(strategy="ddp", devices=1, gradient_algorithm="diloco"),
    ):
        pass
