"""What a loop does between its passes, on its way back to where it was: done again alike, or
refused.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_checkpoint.disk import folder

from .cut_training import DATA, Clock, Cut, make, seed, step
from .loops_of_epochs import five_to_one

LOOP = Path(__file__).parent / "loops" / "epochs.py"


def epoch(model: Any, optimizer: Any, clock: Clock, chosen: list[int]) -> float:
    total = 0.0
    for (x,) in DataLoader(Subset(DATA, chosen), batch_size=4, shuffle=True):
        total += step(model, optimizer, x)
        clock()
    return total


def interrupted(loop: Callable[[Any, Clock], Any], place: Path, cut: int, **resumed: Any) -> Any:
    seed()
    with pytest.raises(Cut), session(checkpoint=place, every_n_steps=1) as s:
        loop(s, Clock(cut))
    seed(99)
    with session(checkpoint=place, every_n_steps=1, **resumed) as s:
        return loop(s, Clock())


def test_draws_that_depend_on_a_metric_are_made_again(tmp_path: Path) -> None:
    """And samples that are chosen by a count, and tensors."""

    def loop(s: Any, clock: Clock) -> list[Any]:
        model, optimizer = make()
        total, seen, losses = 1.0, 0, {"last": 0.0}
        for _ in range(4):
            chosen = torch.randperm(22)[:8].tolist() if total > 0.02 else [*range(8)]
            total = epoch(model, optimizer, clock, chosen)
            for (x,) in DataLoader(Subset(DATA, range(seen, seen + 5)), batch_size=2):
                losses["last"] = step(model, optimizer, x)
                seen += len(x)
            part = DATA.tensors[0][seen : seen + int(losses["last"] < 1e-3) + 1]
            epoch_of_part = DataLoader(TensorDataset(part), batch_size=1)
            total += sum(step(model, optimizer, x) for (x,) in epoch_of_part)
        return [*model.parameters()]

    seed()
    whole = loop(None, Clock())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = interrupted(loop, tmp_path, 7)
    assert all(map(torch.equal, resumed, whole))


def test_draws_that_depend_on_a_sum_in_a_tensor_are_refused_by_name(tmp_path: Path) -> None:
    def loop(s: Any, clock: Clock) -> None:
        model, optimizer = make()
        total = torch.ones(2)
        for _ in range(4):
            chosen = torch.randperm(22)[:8].tolist() if total[0] else [*range(8)]
            total = torch.zeros(2)
            for (x,) in DataLoader(Subset(DATA, chosen), batch_size=4, shuffle=True):
                total[0] += step(model, optimizer, x)
                clock()

    words = r"before pass 1 .*Subset, 8 samples.* draws other random numbers \(torch\) than the interrupted run.*s.epochs"
    with pytest.raises(UsageError, match=words):
        interrupted(loop, tmp_path, 5)


@pytest.mark.parametrize("by_epochs", [False, True])
def test_samples_that_are_chosen_by_a_count_are_refused(tmp_path: Path, by_epochs: bool) -> None:
    def loop(s: Any, clock: Clock) -> None:
        model, optimizer = make()
        seen = torch.zeros(1, dtype=torch.int64)
        for _ in s.epochs(3) if by_epochs else range(3):
            first = seen.item()
            for (x,) in DataLoader(Subset(DATA, range(first, first + 6)), batch_size=2):
                step(model, optimizer, x)
                seen += len(x)
                clock()

    with pytest.raises(
        UsageError,
        match=r"over a loader of Subset, 6 samples.* has other samples.*Choose them by the epoch",
    ):
        interrupted(loop, tmp_path, 5)


def test_tensors_that_a_loop_makes_by_a_count_are_said(tmp_path: Path) -> None:
    def loop(s: Any, clock: Clock) -> None:
        model, optimizer = make()
        seen = torch.zeros(1, dtype=torch.int64)
        for _ in range(3):
            part = DATA.tensors[0][seen.item() : seen.item() + 6]
            for (x,) in DataLoader(TensorDataset(part), batch_size=2):
                step(model, optimizer, x)
                seen += len(x)
                clock()

    with pytest.warns(
        UserWarning,
        match=r"the tensors of the loader of TensorDataset, 6 samples.* differ from those",
    ):
        interrupted(loop, tmp_path, 5)


def test_other_draws_before_the_first_pass_are_said(tmp_path: Path) -> None:
    """By a seed that the script draws from the clock, as it were."""

    def loop(s: Any, clock: Clock) -> None:
        model, optimizer = make()
        if folder.found(tmp_path):
            torch.manual_seed(5)
        torch.randn(3)
        epoch(model, optimizer, clock, [*range(8)])

    with pytest.warns(
        UserWarning,
        match=r"before its first pass over a loader the script draws other random numbers \(torch\)",
    ):
        interrupted(loop, tmp_path, 2)


def test_a_script_without_a_seed_splits_alike(tmp_path: Path) -> None:
    """What is drawn inside the block: as in the run that was interrupted."""
    splits = []

    def loop(s: Any, clock: Clock) -> None:
        chosen = torch.randperm(22)[:8].tolist()
        splits.append(chosen)
        epoch(*make(), clock, chosen)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interrupted(loop, tmp_path, 2)
    assert splits[0] == splits[1]


def test_what_is_left_out_is_not_saved_again(tmp_path: Path) -> None:
    """``s.save`` of an epoch that is over would write weights that were never trained."""

    def loop(s: Any, clock: Clock) -> None:
        model, optimizer = make()
        for number in range(3):
            epoch(model, optimizer, clock, [*range(12)])
            s.save(tmp_path / f"epoch{number}")

    def steps() -> list[Any]:
        return [folder.manifest(tmp_path / f"epoch{number}")["step"] for number in range(3)]

    interrupted(loop, tmp_path / "checkpoints", 8)
    assert steps() == [3, 6, 9]


def test_it_goes_on_at_the_very_call_that_saved(tmp_path: Path) -> None:
    """What comes between ``s.save`` and the next pass is done once, with the numbers
    that it had.
    """

    def loop(s: Any, clock: Clock) -> list[Any]:
        model, optimizer = make()
        seen = [0]
        for number in range(4):
            chosen = torch.randperm(22)[:12].tolist()
            epoch(model, optimizer, clock, chosen)
            if s is not None and not (tmp_path / f"epoch{number}").exists():
                s.save(tmp_path / f"epoch{number}")
            elif s is not None:
                s.save(tmp_path / "again")
            seen.append(seen[-1] + int(torch.randint(100, (1,))))
        return [*model.parameters(), torch.tensor(seen)]

    seed()
    whole = loop(None, Clock())
    seed()
    with session(checkpoint=tmp_path / "checkpoints") as s:
        loop(s, Clock())
    seed(99)
    with session(checkpoint=tmp_path / "others", resume=tmp_path / "epoch1") as s:
        resumed = loop(s, Clock())
    assert [torch.equal(one, other) for one, other in zip(resumed, whole, strict=True)] == [
        True
    ] * len(whole)


def test_steps_of_two_optimizers_are_numbered_as_without_interruptions(tmp_path: Path) -> None:
    def once(place: Path, cut: int) -> list[str]:
        seed()
        with contextlib.suppress(Cut), session(checkpoint=place, every_n_steps=1):
            five_to_one(range, Clock(cut))
        return [one.name for one in folder.found(place)]

    interruptions = [once(tmp_path / "cut", cut) for cut in (7, 3, 5, -1)]
    assert interruptions[-1] == once(tmp_path / "whole", -1)


def test_a_count_that_the_way_back_changes_is_put_back(tmp_path: Path) -> None:
    """It was as at first when the checkpoint was written, so that it stands in none."""

    def loop(s: Any, clock: Clock) -> int:
        model, optimizer = make()
        epochs_without_loss = 0
        for _ in range(4):
            total = epoch(model, optimizer, clock, [*range(12)])
            epochs_without_loss += total == 0.0
        return epochs_without_loss

    assert interrupted(loop, tmp_path, 8) == 0


def test_a_wrapper_that_fetches_ahead_is_led_back(tmp_path: Path) -> None:
    """It ends its pass before the loop has used the last batches."""

    def ahead(loader: Any) -> Any:
        last = None
        for batch in loader:
            if last is not None:
                yield last
            last = batch
        if last is not None:
            yield last

    def loop(s: Any, clock: Clock) -> list[Any]:
        model, optimizer = make()
        for _ in range(4):
            for (x,) in ahead(
                DataLoader(
                    Subset(DATA, torch.randperm(22)[:16].tolist()), batch_size=4, shuffle=True
                )
            ):
                step(model, optimizer, x)
                clock()
        return [*model.parameters()]

    seed()
    whole = loop(None, Clock())
    resumed = interrupted(loop, tmp_path, 10)
    assert [torch.equal(one, other) for one, other in zip(resumed, whole, strict=True)] == [
        True
    ] * len(whole)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["range", "epochs"])
def test_two_ranks_draw_in_evaluation_what_they_would_have_drawn(
    run: Any, tmp_path: Path, loop: str
) -> None:
    args = ["--ranks", 2, "--loop", loop, "--every", 1]
    whole = run(LOOP, *args, folder=tmp_path / "whole").ok().stdout
    for die in (7, 9):
        assert run(LOOP, *args, "--die", die, "--whom", 1, folder=tmp_path / "killed").status != 0
    assert run(LOOP, *args, folder=tmp_path / "killed").ok().stdout == whole
