"""Killed and started again: the end is bit for bit that of a run that nobody interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.timeout(900)
LOOP = Path(__file__).parent / "loops" / "plain.py"


def end(ran: Any) -> str:
    """What the loop printed last: the digest of everything that was trained."""
    return str(ran.ok().stdout.splitlines()[-1])


def interrupted(run: Any, folder: Path, die: int, *args: Any) -> Any:
    """Killed after so many steps, and started again."""
    assert run(LOOP, *args, "--die", die, folder=folder).status != 0
    return run(LOOP, *args, folder=folder)


@pytest.mark.share(3)
@pytest.mark.parametrize("loop", ["range", "epochs"])
@pytest.mark.parametrize("die", [1, 12, 20])
def test_one_rank_ends_as_a_process_without_torchbus(
    run: Any, tmp_path: Path, loop: str, die: int
) -> None:
    plain = end(run(LOOP, "--ranks", 0, folder=tmp_path / "plain"))
    resumed = interrupted(run, tmp_path / "killed", die, "--loop", loop)
    assert end(resumed) == plain
    epochs = [line for line in resumed.stdout.splitlines() if line.startswith("epoch")]
    assert epochs == [f"epoch {epoch}" for epoch in range((die - 1) // 3 * 3 // 12, 3)]


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("loop", "die", "args"),
    [
        ("range", 5, ["--accumulate", 2, "--workers", 2]),
        ("range", 9, ["--workers", 2]),
        ("epochs", 14, ["--workers", 2]),
        ("range", 5, ["--accumulate", 2, "--every", 1]),
        ("range", 5, ["--never-clear", "--every", 2]),
        pytest.param("range", 9, ["--enumerate"], marks=pytest.mark.slow),
        pytest.param("epochs", 16, ["--enumerate"], marks=pytest.mark.slow),
    ],
)
def test_in_workers_in_accumulation_and_numbered(
    run: Any, tmp_path: Path, loop: str, die: int, args: list[Any]
) -> None:
    args = ["--loop", loop, *args]
    whole = end(run(LOOP, *args, folder=tmp_path / "whole"))
    assert end(interrupted(run, tmp_path / "killed", die, *args)) == whole


@pytest.mark.parametrize(
    ("loop", "die", "args"),
    [
        ("range", 8, []),
        pytest.param("epochs", 13, ["--workers", 1, "--accumulate", 2], marks=pytest.mark.slow),
    ],
)
def test_two_ranks(run: Any, tmp_path: Path, loop: str, die: int, args: list[Any]) -> None:
    args = ["--loop", loop, "--ranks", 2, *args]
    whole = end(run(LOOP, *args, folder=tmp_path / "whole"))
    assert end(interrupted(run, tmp_path / "killed", die, *args)) == whole


def test_a_run_that_ended_is_not_run_again_and_can_be_made_longer(run: Any, tmp_path: Path) -> None:
    args = ["--loop", "epochs"]
    first = run(LOOP, *args, "--epochs", 2, folder=tmp_path)
    again = run(LOOP, *args, "--epochs", 2, folder=tmp_path)
    assert end(again) == end(first) and "epoch" not in again.stdout
    longer = run(LOOP, *args, "--epochs", 3, folder=tmp_path)
    assert end(longer) == end(run(LOOP, "--ranks", 0, "--epochs", 3, folder=tmp_path / "plain"))
    assert "epoch 2" in longer.stdout and "epoch 1" not in longer.stdout


def test_a_run_that_ended_is_not_run_again_with_range(run: Any, tmp_path: Path) -> None:
    first, again = run(LOOP, folder=tmp_path), run(LOOP, folder=tmp_path)
    assert first.ok() and again.ok() and "epoch" not in again.stdout


def test_another_number_of_ranks(run: Any, tmp_path: Path) -> None:
    """Two ranks with batches of 4 go on as one: the order of the data goes on where it was."""
    assert run(LOOP, "--ranks", 2, "--die", 4, folder=tmp_path).status != 0
    resumed = run(LOOP, "--ranks", 1, folder=tmp_path).ok()
    assert "was written by 2 ranks, and there are 1 now" in resumed.stderr
    assert [line for line in resumed.stdout.splitlines() if line.startswith("epoch")] == [
        "epoch 0",
        "epoch 1",
        "epoch 2",
    ]


PERSISTENT = SCRIPTS / "persistent_workers.py"


@pytest.mark.parametrize(("loader", "cuts"), [("kept", [2, 6]), ("anew", [6])])
def test_workers_that_persist(run: Any, tmp_path: Path, loader: str, cuts: list[int]) -> None:
    """The order of the data is that of a run that was never interrupted: in the pass in which they
    were begun, and later; of loaders that are made anew for each epoch, too.
    """
    whole = run(PERSISTENT, loader, 0, folder=tmp_path / "whole").ok()
    assert "start again, and so do" not in whole.stderr
    for cut in cuts:
        assert run(PERSISTENT, loader, cut, folder=tmp_path / str(cut)).status != 0
        resumed = run(PERSISTENT, loader, 0, folder=tmp_path / str(cut)).ok()
        assert resumed.stdout == whole.stdout
        assert ("start again, and so do" in resumed.stderr) is (cut > 4 and loader == "kept")


WITHOUT_NOISE = SCRIPTS / "without_noise.py"


@pytest.mark.parametrize("before_and_after", [(2, 1), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_another_number_of_ranks_has_the_same_numbers(
    run: Any, tmp_path: Path, before_and_after: tuple[int, int]
) -> None:
    """With the same global batch, and nothing that each rank draws for itself; in this epoch and in
    those to come.
    """
    plain, folder = run(WITHOUT_NOISE, 0, 0, folder=tmp_path / "plain").ok(), tmp_path / "resumed"
    before, after = before_and_after
    assert run(WITHOUT_NOISE, before, 9, folder=folder).stdout == ""
    resumed = run(WITHOUT_NOISE, after, 0, folder=folder).ok()
    assert torch.allclose(
        *(torch.tensor(json.loads(one.stdout), dtype=torch.float64) for one in (plain, resumed)),
        rtol=1e-9,
        atol=0.0,
    )
