"""Windows of ``accumulate_grad_batches``: replicas equal one process, also if one dies in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ft_running import Replicas, assert_each_once, killed_and_back, same, used

SCRIPTS = Path(__file__).parent / "scripts"


def test_windows_equal_one_process(replicas: Replicas) -> None:
    """62 samples in windows of 24: the last one of each pass is ragged."""
    words = ["--no-norm", "--samples", 62, "--epochs", 2]
    both = [replicas.start(name, *words, "--min-replicas", 2, "--windows", 3) for name in "ab"]
    for one in both:
        one.result().ok()
    replicas.start("plain", *words, "--plain", "--batch", 24).result().ok()
    plain, mine, theirs = map(replicas.end, ("plain", "a", "b"))
    for name in ("model", "optimizer", "scheduler"):
        assert same(mine[name], theirs[name]), name
        torch.testing.assert_close(mine[name], plain[name], rtol=1e-10, atol=1e-12)
    assert_each_once(replicas.out, 62, 2)


@pytest.mark.slow
@pytest.mark.parametrize("die", ["step:7", "reduce:8"])
def test_a_replica_dies_in_a_window_and_comes_back(replicas: Replicas, die: str) -> None:
    """The window of batches 6 to 8 is dropped, and run anew without the dead one."""
    mine, theirs = killed_and_back(replicas, die, "--windows", 3)
    for name in ("model", "optimizer", "scheduler"):
        assert same(mine[name], theirs[name]), name
    made = mine["optimizer"]["state"][0]["step"]
    assert mine["scheduler"]["last_epoch"] == made, "a dropped window has moved the scheduler"
    for told in mine["lasts"]:
        assert told == [False] * (len(told) - 1) + [True], "the last batch of a pass is not known"
    assert_each_once(replicas.out, 160, 3)


@pytest.mark.slow
def test_windows_of_replicas_of_two_ranks(replicas: Replicas) -> None:
    words = ["--devices", 2, "--timeout", 30, "--samples", 310, "--windows", 3]
    mine, theirs = killed_and_back(replicas, "step:4", *words)
    assert same(mine["model"], theirs["model"]) and same(mine["optimizer"], theirs["optimizer"])
    assert_each_once(replicas.out, 310, 3)


@pytest.mark.slow
def test_what_losses_count(replicas: Replicas) -> None:
    both = [replicas.start(name, script=SCRIPTS / "counted.py") for name in "ab"]
    for one in both:
        told = one.result().ok().json()
        refused = told.pop("refused")
        assert max(told.values()) < 1e-12, told
        assert refused.startswith("an accumulation window was left before its last batch (by break")


@pytest.mark.slow
@pytest.mark.parametrize("die", [-1, 3])
def test_a_gan_whose_last_window_is_ragged(replicas: Replicas, die: int) -> None:
    """b dies inside the second all-reduce of the second window: a has made the first step of it."""
    words = ["--loop", "windows", "--die", die]
    first, second = (replicas.start(name, *words, script="kinds.py") for name in "ab")
    assert second.result().status == (-9 if die >= 0 else 0)
    first.result().ok()
    if die < 0:
        mine, theirs = map(replicas.end, "ab")
        assert all(same(mine[name], theirs[name]) for name in mine.keys() - {"explain"})
    else:
        assert "1 dropped" in replicas.end("a")["explain"]
    steps = used(replicas.out)[0]
    samples = [index for one in steps.values() for index in one]
    assert len(set(samples)) == len(samples) >= 92, "each once, but for drop_last"
    assert all(stop - start >= 5 for start, stop in sorted(steps)[:-1]), "whole windows"
