"""Replicas of two ranks, which shard the model by fsdp."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ft_running import Replicas, assert_each_once, killed_and_back, same

SCRIPTS = Path(__file__).parent / "scripts"
INSIDE = ["--devices", 2, "--inside", "fsdp", "--timeout", 30]


def test_shards_equal_one_process(replicas: Replicas) -> None:
    """62 samples in steps of 16: the last one of each pass is ragged."""
    words = ["--no-norm", "--samples", 62, "--epochs", 2]
    both = [replicas.start(name, *words, *INSIDE, "--min-replicas", 2) for name in "ab"]
    for one in both:
        one.result().ok()
    replicas.start("plain", *words, "--plain", "--batch", 16).result().ok()
    plain, mine, theirs = map(replicas.end, ("plain", "a", "b"))
    for name in ("model", "optimizer", "scheduler", "losses"):
        assert same(mine[name], theirs[name]), name
        torch.testing.assert_close(mine[name], plain[name], rtol=1e-10, atol=1e-12)
    assert_each_once(replicas.out, 62, 2)


@pytest.mark.slow
@pytest.mark.parametrize("die", ["step:4", "reduce:5"])
def test_a_newcomer_gets_the_shards(replicas: Replicas, die: str) -> None:
    """With windows of three batches, in the second of which a replica dies."""
    words = [*INSIDE, "--samples", 310, "--windows", 3]
    mine, theirs = killed_and_back(replicas, die, *words)
    for name in ("model", "optimizer", "scheduler"):
        assert same(mine[name], theirs[name]), name
    assert_each_once(replicas.out, 310, 3)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["gan", "shared"])
def test_two_optimizers(replicas: Replicas, loop: str) -> None:
    """b dies inside an all-reduce of its third step or so. Then both run whole."""
    words = ["--loop", loop, *INSIDE[:4]]
    first, second = (replicas.start(name, *words, "--die", 5, script="kinds.py") for name in "ab")
    assert second.result().status in (-9, 1)
    first.result().ok()
    assert "1 dropped" in replicas.end("a")["explain"]
    assert_each_once(replicas.out, 96, 1)


@pytest.mark.slow
def test_what_losses_count(replicas: Replicas) -> None:
    both = [replicas.start(name, *INSIDE[:4], script=SCRIPTS / "counted.py") for name in "ab"]
    for one in both:
        told = one.result().ok().json()
        assert told.pop("refused").startswith("an accumulation window was left before its last")
        assert max(told.values()) < 1e-12, told


def test_refused(replicas: Replicas) -> None:
    told = replicas.start("a", script=SCRIPTS / "refused.py").result().ok().json()
    assert told["one_rank"].startswith("UsageError: replica_strategy='fsdp' with one rank")
    assert told["whole"].startswith("UsageError: gradient_algorithm='diloco' with replica_strategy")
    assert told["hybrid"].startswith("UsageError: fsdp inside of replicas that come and go shards")
    assert told["loose"].startswith(
        "Unsupported: replica_strategy='fsdp': SGD holds tensors that no"
    )
    assert told["absent"].startswith("UsageError: replica_strategy='fsdp' needs torchbus-sharded")
