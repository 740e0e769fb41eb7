"""SIGKILL at random moments: while it starts, trains, evaluates, or writes a checkpoint. Every run ends as one never killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

LOOP = Path(__file__).parent / "loops" / "plain.py"
WAYS: list[list[Any]] = [["--every", 1], ["--every", 2, "--loop", "epochs", "--enumerate"]]
TWO_RANKS: list[list[Any]] = [["--ranks", 2, "--every", 1], ["--ranks", 2, "--every", 3, "--accumulate", 2, "--loop", "epochs"]]


def ends_alike(run: Any, folder: Path, ways: list[list[Any]], num_kills: int) -> tuple[int, int]:
    """Number of ends that were bit for bit the right one, and of runs that had not yet ended when they were killed."""
    chance, alike, in_time = random.Random(0), 0, 0
    run(LOOP, folder=folder / "first")  # slower than those that follow
    whole = [run(LOOP, *args, folder=folder / f"whole{number}").ok() for number, args in enumerate(ways)]
    for number in range(num_kills):
        args, expected = ways[number % len(ways)], whole[number % len(ways)]
        place, whom = folder / str(number), chance.randrange(2)
        killed = run(LOOP, *args, folder=place, kill_after_s=chance.uniform(0.0, expected.seconds), whom=whom)
        in_time += killed.status != 0
        said = killed.stdout + run(LOOP, *args, folder=place).ok().stdout  # what had been said is not said again
        alike += said.splitlines()[-1:] == expected.stdout.splitlines()[-1:]
    return alike, in_time


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num_kills", "ways"),
    [
        pytest.param(8, WAYS, id="8"),
        pytest.param(100, WAYS + TWO_RANKS, id="100", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_the_end_is_that_of_a_run_never_killed(run: Any, tmp_path: Path, num_kills: int, ways: list[list[Any]]) -> None:
    alike, in_time = ends_alike(run, tmp_path, ways, num_kills)
    assert alike == num_kills and in_time >= num_kills // 5
