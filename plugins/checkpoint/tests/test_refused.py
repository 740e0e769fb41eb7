"""Loops that can't be gone on with are refused, with the word to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from .cut_training import DATA, Clock, Cut, make, step


def test_a_position_that_a_range_hides_is_refused_at_the_first_checkpoint(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"for number in s.epochs\(...\)"),
        session(checkpoint=tmp_path, every_n_steps=3),
    ):
        model, optimizer = make()
        batches = iter(DataLoader(DATA, batch_size=1))
        for number in range(10):
            step(model, optimizer, next(batches)[0] + number)


def test_a_loop_that_nobody_can_follow_is_refused_at_its_first_step(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"no batch from a DataLoader.*for step in s.epochs"),
        session(checkpoint=tmp_path),
    ):
        model, optimizer = make()
        for _ in range(3):
            step(model, optimizer, torch.randn(2, 3))


def test_steps_outside_of_loaders_are_refused_on_the_way_back(tmp_path: Path) -> None:
    def loop(clock: Clock) -> None:
        model, optimizer = make()
        for _ in range(3):
            for (x,) in DataLoader(DATA, batch_size=4):
                step(model, optimizer, x)
                clock()
            step(model, optimizer, torch.randn(2, 3))

    with pytest.raises(Cut), session(checkpoint=tmp_path, every_n_steps=1):
        loop(Clock(14))
    with (
        pytest.raises(UsageError, match=r"on batches that no loader made.*s.epochs"),
        session(checkpoint=tmp_path),
    ):
        loop(Clock())


def test_epochs_that_need_their_data_are_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    def loop(clock: Clock, least: int = 0, epochs: Any = range) -> Any:
        torch.manual_seed(0)
        model, optimizer = make()
        for _ in epochs(3):
            batches: set[Any] = set()
            for (x,) in DataLoader(DATA, batch_size=4, shuffle=True):
                batches.add((step(model, optimizer, x), len(batches)))
                clock()
            print(mean := sum(loss for loss, _ in sorted(batches)) / max(least, len(batches)))
        return [mean, *model.parameters()]

    plain = loop(Clock())
    with pytest.raises(Cut), session(checkpoint=tmp_path, every_n_steps=1):
        loop(Clock(14))
    words = r"ZeroDivisionError.*if there were batches: write `if outputs:`.*for epoch in s.epochs.*in another folder"
    with pytest.raises(UsageError, match=words), session(checkpoint=tmp_path):
        loop(Clock())
    words = r"a loop that is not over s.epochs.*resume with the loop as it was"
    with pytest.raises(UsageError, match=words), session(checkpoint=tmp_path) as s:
        loop(Clock(), epochs=s.epochs)
    with session(checkpoint=tmp_path):
        resumed = loop(Clock(), least=1)
    with session(checkpoint=tmp_path / "other") as s:
        begun_again = loop(Clock(), epochs=s.epochs)
    for found in (resumed, begun_again):
        assert all(map(torch.equal, plain[1:], found[1:]))
        assert plain[0] == found[0]


def test_other_data_is_refused(tmp_path: Path) -> None:
    def loop(data: Any, clock: Clock) -> None:
        model, optimizer = make()
        for (x,) in DataLoader(data, batch_size=4):
            step(model, optimizer, x)
            clock()

    with pytest.raises(Cut), session(checkpoint=tmp_path, every_n_steps=1):
        loop(DATA, Clock(3))
    words = (
        r"TensorDataset, 8 samples.*in the checkpoint it was over one of TensorDataset, 22 samples"
    )
    with pytest.raises(UsageError, match=words), session(checkpoint=tmp_path):
        loop(TensorDataset(torch.ones(8, 3)), Clock())


def test_a_shorter_loop_is_refused_and_begins_again_in_another_folder(
    tmp_path: Path,
) -> None:
    def loop(epochs: int, clock: Clock) -> None:
        model, optimizer = make()
        for _ in range(epochs):
            for (x,) in DataLoader(DATA, batch_size=4):
                step(model, optimizer, x)
                clock()

    with pytest.raises(Cut), session(checkpoint=tmp_path / "a", every_n_steps=1, seed=0):
        loop(3, Clock(8))
    words = "shorter than it was, or ends by a value of an evaluation, which a replay does not have"
    with pytest.raises(UsageError, match=words), session(checkpoint=tmp_path / "a", seed=0):
        loop(1, Clock())
    with session(checkpoint=tmp_path / "a", seed=0):
        loop(3, Clock())
    with session(checkpoint=tmp_path / "b"):
        loop(1, Clock())


def evaluate_first(epochs, cut=0):
    """Evaluate before the pass that trains, and use all outputs at once."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    for _ in epochs:
        with torch.no_grad():
            outputs = [model(x) for x in DataLoader(torch.ones(8, 2), batch_size=4)]
        torch.cat(outputs)
        for x in DataLoader(torch.ones(16, 2), batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
            if steps == cut:
                raise InterruptedError


@pytest.mark.parametrize(
    ("in_epochs", "message"),
    [
        (False, r"skip its finished epochs, .* Or begin again with `for epoch in s\.epochs"),
        (
            True,
            r"skip its finished passes of this epoch, .* Or evaluate after the pass that trains",
        ),
    ],
)
def test_outputs_that_a_skipped_pass_would_have_made(tmp_path, in_epochs, message):
    def start(cut=0):
        with session(strategy=None, checkpoint=tmp_path, every_n_steps=2) as s:
            evaluate_first(s.epochs(3) if in_epochs else range(3), cut)

    with pytest.raises(InterruptedError):
        start(cut=7)
    with pytest.raises(UsageError, match=message):
        start()
