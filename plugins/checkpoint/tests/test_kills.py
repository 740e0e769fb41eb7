"""SIGKILL at random moments, again and again: while it starts, is led back, trains, evaluates, or
writes a checkpoint. Every chain of runs ends as one run that was never killed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.scripts import Result

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


@dataclass
class Chain:
    """One script that is killed and started again until a last run, which nobody kills.

    ``number`` says everything that is drawn by chance.
    """

    number: int
    way: Way
    runs: list[Result] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)

    def go(self, run: Any, folder: Path, seconds: float, max_kills: int) -> None:
        (loop, args), chance = self.way, random.Random(self.number)
        for _ in range(chance.randint(1, max_kills)):
            more, options = deadly(chance, loop), when(chance, seconds)
            self.kills.append(f"{more} {options}")
            self.runs.append(run(loop, *args, *more, folder=folder, **options))
        self.runs.append(run(loop, *args, folder=folder).ok())

    @property
    def end(self) -> str:
        """The last line. What had been said is not said again by the next run, which may have
        nothing to say.
        """
        return last_line(next(one for one in reversed(self.runs) if one.stdout))

    def __str__(self) -> str:
        (loop, args), kills = self.way, [*self.kills, "none"]
        ends = [
            f"  {kill}: {one.status} {one.stdout!r} {one.stderr!r}"
            for kill, one in zip(kills, self.runs, strict=True)
        ]
        return "\n".join([f"chain {self.number}: {loop.name} {args} ends with {self.end!r}", *ends])


def last_line(result: Result) -> str:
    return result.stdout.splitlines()[-1]


def chains(
    run: Any, folder: Path, ways: list[Way], numbers: Iterable[int], max_kills: int
) -> tuple[list[Chain], int]:
    """Those whose end was not bit for bit the right one, and the number of runs that had not yet
    ended when they were killed.
    """
    run(PLAIN, folder=folder / "first")  # slower than those that follow
    whole = [
        run(loop, *args, folder=folder / f"whole{number}").ok()
        for number, (loop, args) in enumerate(ways)
    ]
    different, in_time = [], 0
    for number in numbers:
        expected, chain = whole[number % len(ways)], Chain(number, ways[number % len(ways)])
        chain.go(run, folder / str(number), expected.seconds, max_kills)
        in_time += sum(one.status != 0 for one in chain.runs)
        different += [chain] if chain.end != last_line(expected) else []
    return different, in_time


def deadly(chance: random.Random, loop: Path) -> list[Any]:
    """Half of the runs of the loop that can kill itself do so, after a few of its places."""
    return (
        ["--die", chance.randint(1, 14), "--whom", chance.randrange(2)]
        if loop == EPOCHS and chance.random() < 0.5
        else []
    )


def when(chance: random.Random, seconds: float) -> dict[str, Any]:
    """All are killed from outside, if they are still there."""
    return {"kill_after_s": chance.uniform(0.0, seconds), "whom": chance.randrange(2)}


@pytest.mark.parametrize(
    ("num_chains", "max_kills", "ways"),
    [
        pytest.param(5, 2, WAYS + TWO_RANKS[:1], id="5", marks=pytest.mark.timeout(900)),
        pytest.param(
            25,
            2,
            WAYS + TWO_RANKS[:1],
            id="25",
            marks=[pytest.mark.slow, pytest.mark.timeout(900)],
        ),
        pytest.param(
            100,
            MAX_KILLS,
            WAYS + TWO_RANKS,
            id="100",
            marks=[pytest.mark.slow, pytest.mark.timeout(14400)],
        ),
    ],
)
def test_the_end_is_that_of_a_run_never_killed(
    run: Any, tmp_path: Path, num_chains: int, max_kills: int, ways: list[Way]
) -> None:
    different, in_time = chains(run, tmp_path, ways, range(num_chains), max_kills)
    assert not different, "\n".join(map(str, different))
    assert in_time >= num_chains // 5
