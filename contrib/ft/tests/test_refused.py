"""Errors name the reason, and no step that was made is lost."""

from __future__ import annotations

import pytest
from ft_running import Lighthouse, Replicas


def test_bad_input(replicas: Replicas) -> None:
    strict = Lighthouse(min_replicas=2)
    found = replicas.start("a", "--strict", strict.url, script="refused.py").result()
    strict.close()
    told = found.json()
    assert told["none"].startswith("UsageError: strategy='ft' needs a lighthouse")
    assert told["no_url"].startswith("UsageError: lighthouse='localhost' is not a URL with a port")
    assert told["silent"].startswith("LaunchError: the lighthouse at http://127.0.0.1:9 does not")
    assert told["no_address"].startswith("LaunchError: the lighthouse at http://nowhere.invalid:9")
    assert told["inside"].startswith("UsageError: replica_strategy='pp' is unknown: use 'ddp'")
    assert told["shard_eval"].startswith("UsageError: shard_eval=True: what replicas")
    assert told["stream"].startswith("Unsupported: a loader over Stream, an IterableDataset")
    assert told["by_hand"].startswith("Unsupported: strategy='ft' averages gradients in loss.back")
    assert "replica 'x' waits: 1 of at least 2 replicas have come. Start the others" in found.stderr
    assert told["few"].startswith("RankFailed: replica 'x': 1 of at least 2 replicas have come wi")
    assert told["no_quorum"].startswith("RankFailed: replica 'x': the lighthouse at http://127")
    assert "has not formed a quorum within quorum_timeout_s=1" in told["no_quorum"]
    assert told["host"].startswith("UsageError: host=3")
    assert told["buffers"].startswith("UsageError: FT(sync_buffers=...) has no effect: all ranks")
    assert told["reduction"].startswith("UsageError: FT(loss_reduction=...) with replica_strategy=")
    assert told["least"] == "UsageError: min_replicas=0 must be at least 1"
    assert told["seconds"] == "UsageError: timeout_s=0 must be more than 0"


@pytest.mark.slow
def test_unlike_models(replicas: Replicas) -> None:
    first = replicas.start("a", "--peers", 2, "--hold", 12)
    second = replicas.start("b", "--peers", 2, "--no-norm").result()
    assert second.status == 1
    assert "RanksDiverged: replica 'b' does not train the same model" in second.stderr
    (replicas.out / "go").touch()
    first.result().ok()


@pytest.mark.slow
def test_a_lighthouse_that_dies(replicas: Replicas) -> None:
    told = replicas.start("a", script="lost.py").result().json()
    assert told["message"].startswith("RankFailed: replica ")
    assert "can't reach the lighthouse at http://127.0.0.1" in told["message"]
    assert "after 4 steps" in told["message"]
    assert told["steps"] == 4 and told["same"]


@pytest.mark.slow
def test_a_lighthouse_that_comes_back(replicas: Replicas) -> None:
    told = replicas.start("a", "--again", script="lost.py").result().json()
    assert told == {"message": "", "steps": 8, "same": True}


def test_nothing_is_left(replicas: Replicas) -> None:
    assert replicas.start("a", script="left.py").result().json() == {"threads": [], "ports": []}
