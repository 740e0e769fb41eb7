"""SIGKILL at random moments, again and again: while it starts, is led back, trains, evaluates, or writes a checkpoint. Every chain of runs ends as
one run that was never killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

LOOPS = Path(__file__).parent / "loops"
PLAIN, EPOCHS = LOOPS / "plain.py", LOOPS / "epochs.py"
Way = tuple[Path, list[Any]]
WAYS: list[Way] = [
    (EPOCHS, ["--every", 1]),
    (EPOCHS, ["--every", 2, "--loop", "epochs"]),
    (PLAIN, ["--every", 1]),
    (PLAIN, ["--every", 2, "--loop", "epochs", "--enumerate"]),
]
TWO_RANKS: list[Way] = [
    (EPOCHS, ["--ranks", 2, "--every", 1]),
    (EPOCHS, ["--ranks", 2, "--every", 1, "--loop", "epochs"]),
    (PLAIN, ["--ranks", 2, "--every", 1]),
    (PLAIN, ["--ranks", 2, "--every", 3, "--accumulate", 2, "--loop", "epochs"]),
]
MAX_KILLS = 10


def ends_alike(run: Any, folder: Path, ways: list[Way], num_chains: int, max_kills: int) -> tuple[int, int]:
    """Number of chains whose end was bit for bit the right one, and of runs that had not yet ended when they were killed."""
    chance, alike, in_time = random.Random(0), 0, 0
    run(PLAIN, folder=folder / "first")  # slower than those that follow
    whole = [run(loop, *args, folder=folder / f"whole{number}").ok() for number, (loop, args) in enumerate(ways)]
    for number in range(num_chains):
        (loop, args), expected = ways[number % len(ways)], whole[number % len(ways)]
        place, said = folder / str(number), ""
        for _ in range(chance.randint(1, max_kills)):
            killed = run(loop, *args, *deadly(chance, loop), folder=place, **when(chance, expected.seconds))
            said += killed.stdout
            in_time += killed.status != 0
        said += run(loop, *args, folder=place).ok().stdout  # what had been said is not said again
        alike += said.splitlines()[-1:] == expected.stdout.splitlines()[-1:]
    return alike, in_time


def deadly(chance: random.Random, loop: Path) -> list[Any]:
    """Half of the runs of the loop that can kill itself do so, after a few of its places."""
    return ["--die", chance.randint(1, 14), "--whom", chance.randrange(2)] if loop == EPOCHS and chance.random() < 0.5 else []


def when(chance: random.Random, seconds: float) -> dict[str, Any]:
    """All are killed from outside, if they are still there."""
    return {"kill_after_s": chance.uniform(0.0, seconds), "whom": chance.randrange(2)}


@pytest.mark.parametrize(
    ("num_chains", "max_kills", "ways"),
    [
        pytest.param(25, 2, WAYS + TWO_RANKS[:1], id="25", marks=pytest.mark.timeout(900)),
        pytest.param(100, MAX_KILLS, WAYS + TWO_RANKS, id="100", marks=[pytest.mark.slow, pytest.mark.timeout(14400)]),
    ],
)
def test_the_end_is_that_of_a_run_never_killed(run: Any, tmp_path: Path, num_chains: int, max_kills: int, ways: list[Way]) -> None:
    alike, in_time = ends_alike(run, tmp_path, ways, num_chains, max_kills)
    assert alike == num_chains and in_time >= num_chains // 5
