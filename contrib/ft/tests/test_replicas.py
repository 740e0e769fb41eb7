"""A replica dies and restarts while the other one continues."""

from __future__ import annotations

import pytest
import torch
from ft_running import Replicas, assert_each_once, killed_and_back, same


def test_replicas_equal_one_process(replicas: Replicas) -> None:
    words = ["--no-norm", "--samples", 62, "--epochs", 2]
    both = [replicas.start(name, *words, "--min-replicas", 2) for name in "ab"]
    for one in both:
        one.result().ok()
    replicas.start("plain", *words, "--plain", "--batch", 8).result().ok()
    plain, mine, theirs = map(replicas.end, ("plain", "a", "b"))
    assert same(mine, theirs)
    assert mine["steps"] == plain["steps"] == 16
    torch.testing.assert_close(mine["model"], plain["model"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(mine["losses"], plain["losses"], rtol=1e-10, atol=1e-12)
    assert_each_once(replicas.out, 62, 2)


@pytest.mark.parametrize("die", ["step:7", pytest.param("reduce:7", marks=pytest.mark.slow)])
def test_a_killed_replica_comes_back(replicas: Replicas, die: str) -> None:
    mine, theirs = killed_and_back(replicas, die)
    for name in ("model", "optimizer", "scheduler"):
        assert same(mine[name], theirs[name]), name
    made = mine["steps"] - (1 if die.startswith("reduce") else 0)
    assert mine["scheduler"]["last_epoch"] == made, "a dropped step has moved the scheduler"
    assert mine["optimizer"]["state"][0]["step"] == made > theirs["steps"]
    assert_each_once(replicas.out, 160, 3)


@pytest.mark.slow
@pytest.mark.parametrize("die", ["step:4", "reduce:4"])
def test_replicas_of_two_ranks(replicas: Replicas, die: str) -> None:
    words = ["--devices", 2, "--timeout", 30, "--samples", 320]
    mine, theirs = killed_and_back(replicas, die, *words)
    assert same(mine["model"], theirs["model"]) and same(mine["optimizer"], theirs["optimizer"])
    assert_each_once(replicas.out, 320, 3)
