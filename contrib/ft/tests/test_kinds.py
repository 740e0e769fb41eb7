"""Loops of several kinds, of which one replica dies inside an all-reduce."""

from __future__ import annotations

from typing import Any

import pytest
from ft_running import Replicas, assert_each_once, same


def both(replicas: Replicas, loop: str, *words: object) -> tuple[Any, Any]:
    """Run two replicas to the end, and return their states."""
    running = [
        replicas.start(name, "--loop", loop, *words, script="kinds.py") for name in ("a", "b")
    ]
    for one in running:
        one.result().ok()
    return replicas.end("a"), replicas.end("b")


def survivor(replicas: Replicas, loop: str, die: int, *words: object) -> Any:
    """Return a's final state, after b has died."""
    how = ["--loop", loop, "--die", die, *words]
    first, second = (replicas.start(name, *how, script="kinds.py") for name in ("a", "b"))
    assert second.result().status == -9
    first.result().ok()
    return replicas.end("a")


LOOPS = {"gan": 1, "shared": 1, "closure": 1, "window": 1, "workers": 2}


@pytest.mark.slow
@pytest.mark.parametrize("loop", [*LOOPS, "own_batches"])
def test_replicas_stay_equal(replicas: Replicas, loop: str) -> None:
    mine, theirs = both(replicas, loop)
    for name in mine.keys() - {"explain"}:
        assert same(mine[name], theirs[name]), name
    if loop in LOOPS:
        assert_each_once(replicas.out, 96, LOOPS[loop])


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_the_other_goes_on(replicas: Replicas, loop: str) -> None:
    end = survivor(replicas, loop, 5)
    assert "1 dropped" in end["explain"]
    assert_each_once(replicas.out, 96, LOOPS[loop])
