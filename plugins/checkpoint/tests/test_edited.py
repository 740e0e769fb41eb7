"""What somebody edits before starting a run again: constants stay edited, and refusals name a
remedy that works.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

Schedule = Callable[..., Any]


def train(
    s: Any,
    epochs: int,
    schedule: Schedule | None,
    end: int = 0,
    batch_size: int = 4,
    each_step: bool = False,
    by_hand: float = 1.0,
    **options: Any,
) -> list[float]:
    """Return the rates of each epoch. ``end``: leave after so many steps."""
    torch.manual_seed(0)
    data = torch.randn(16, 3)
    model = torch.nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), **({"lr": 0.02} | options))
    scheduler = schedule(optimizer, epochs) if schedule is not None else None
    rates, steps = [], 0
    for _ in s.epochs(epochs):
        for (x,) in DataLoader(TensorDataset(data), batch_size=batch_size, shuffle=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
            if each_step and scheduler is not None:
                scheduler.step()
            if steps == end:
                raise KeyboardInterrupt
        if scheduler is not None and not each_step:
            scheduler.step()
        optimizer.param_groups[0]["lr"] *= by_hand
        rates.append(optimizer.param_groups[0]["lr"])
    return [*rates, optimizer.param_groups[0]["weight_decay"]]


class Plain:
    epochs = staticmethod(range)


def again(folder: Path, *args: Any, **options: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with session(checkpoint=folder, every_n_steps=1) as s:
            found = train(s, *args, **options)
    return found, [str(one.message) for one in said if "the script sets" in str(one.message)]


def cosine(optimizer: SGD, epochs: int) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, epochs)


def warm(optimizer: SGD, epochs: int) -> Any:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
        lr_scheduler.CosineAnnealingLR(optimizer, epochs),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def halved(optimizer: SGD, epochs: int) -> Any:
    return lr_scheduler.StepLR(optimizer, 1, 0.5)


@pytest.mark.parametrize(
    ("schedule", "first", "then"),
    [
        (cosine, {}, {}),
        (cosine, {}, {"lr": 0.005}),
        (halved, {}, {"lr": 0.005}),
        (warm, {}, {"lr": 0.005}),
        (None, {}, {"lr": 0.005, "weight_decay": 0.1}),
    ],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # torch 2.6 warns of its own call
@pytest.mark.parametrize("end", [0, 7])
def test_a_schedule_goes_on_as_if_it_had_always_been_so(
    tmp_path: Path, schedule: Schedule | None, first: Any, then: Any, end: int
) -> None:
    with (
        suppress(KeyboardInterrupt),
        session(checkpoint=tmp_path / "c", every_n_steps=1) as s,
    ):
        train(s, 3, schedule, end, **first)
    rates, said = again(tmp_path / "c", 5, schedule, **then)
    alone = train(Plain(), 5, schedule, **then)
    count = 5 if end else 3  # of the epochs that have not ended before, and the decay
    assert len(rates) == 6
    assert rates[-count:] == pytest.approx(alone[-count:], rel=1e-6)
    assert len(said) == 1 or (schedule is halved and not then)


def test_what_is_not_edited_is_not_said_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for schedule, each_step in ((cosine, False), (halved, True), (None, False)):
        folder = tmp_path / str(each_step) / str(schedule is None)
        with pytest.raises(KeyboardInterrupt), session(checkpoint=folder, every_n_steps=1) as s:
            train(s, 4, schedule, 6, each_step=each_step, by_hand=0.9)
        rates, said = again(folder, 4, schedule, each_step=each_step, by_hand=0.9)
        alone = train(Plain(), 4, schedule, each_step=each_step, by_hand=0.9)
        assert rates == alone[-len(rates) :] and not said


def test_a_rate_that_the_loop_has_changed_itself_is_the_checkpoints_and_this_is_said(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt), session(checkpoint=tmp_path / "c", every_n_steps=1) as s:
        train(s, 4, None, 6, by_hand=0.5)
    rates, (said,) = again(tmp_path / "c", 4, None, by_hand=0.5, lr=0.005)
    assert rates[:2] == [0.01, 0.005] and "lr of SGD" in said and "checkpoint's value" in said


@pytest.mark.parametrize("to_the_end", [True, False])
def test_another_batch_size_is_refused_in_an_epoch_with_remedies_that_work(
    tmp_path: Path, to_the_end: bool
) -> None:
    folder = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt), session(checkpoint=folder, every_n_steps=1) as s:
        train(s, 3, None, 6)
    with (
        pytest.raises(
            UsageError, match=r"epoch 1 .* batch_size 2;.* Finish this epoch .* another folder"
        ),
        session(checkpoint=folder, every_n_steps=1) as s,
    ):
        train(s, 3, None, batch_size=2)
    if to_the_end:
        with session(checkpoint=folder, every_n_steps=1) as s:
            assert len(train(s, 2, None)) == 3
        with session(checkpoint=folder, every_n_steps=1) as s:
            assert len(train(s, 3, None, batch_size=2)) == 4
    else:
        with session(checkpoint=tmp_path / "other") as s:
            assert len(train(s, 3, None, batch_size=2)) == 4
