"""Schedules and averages of weights under windows: those of the one big batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchbus import session

from torchbus_accumulate.schedules import numbers_of

from .windows_by_hand import Training, loader


def linear(optimizer: Any, batches: int) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 - step / batches)


def in_parts(optimizer: Any, batches: int) -> SequentialLR:
    parts = [
        LinearLR(optimizer, 0.5, 1.0, batches // 2),
        CosineAnnealingLR(optimizer, batches // 2),
    ]
    return SequentialLR(optimizer, parts, [batches // 2])


def train(
    make: Any, samples: int, batch: int, epochs: int = 2
) -> tuple[Training, Any, list[float]]:
    training, data, rates = Training(), loader(samples, batch), []
    scheduler = make(training.optimizer, epochs * len(data))
    training.optimizer.register_step_pre_hook(
        lambda one, *_: rates.append(one.param_groups[0]["lr"])
    )
    for _ in range(epochs):
        for x, y in data:
            training.optimizer.zero_grad()
            training.loss(x, y).backward()
            training.optimizer.step()
            scheduler.step()
    return training, scheduler, rates


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "make", [CosineAnnealingLR, linear, in_parts], ids=["cosine", "lambda", "in parts"]
)
def test_a_schedule_made_from_the_length_is_that_of_the_big_batch(make: Any) -> None:
    with session(accumulate_grad_batches=3) as s:
        training, scheduler, rates = train(make, 24, 2)
        assert "x len(loader)): a real step advances it by those behind it" in " ".join(
            s.explain().split()
        )
    expected, _, of_big = train(make, 24, 6)
    assert scheduler.last_epoch == 24
    assert rates == pytest.approx(of_big)
    assert torch.allclose(training.values(), expected.values())


@pytest.mark.slow
def test_one_cycle_ends_with_the_loop() -> None:
    with session(accumulate_grad_batches=4):
        _, scheduler, rates = train(
            lambda optimizer, batches: OneCycleLR(optimizer, 0.1, total_steps=batches + 1), 22, 2
        )
    # 23 is no multiple of 11: it was not made from the length alone
    assert scheduler.last_epoch == 6
    with session(accumulate_grad_batches=4):
        _, scheduler, rates = train(
            lambda optimizer, batches: OneCycleLR(
                optimizer, 0.1, total_steps=batches, cycle_momentum=False
            ),
            22,
            2,
            1,
        )
    assert scheduler.last_epoch == 11 - 0 and len(rates) == 3


def test_a_schedule_of_other_numbers_goes_by_real_steps() -> None:
    with session(accumulate_grad_batches=3):
        _, scheduler, rates = train(lambda optimizer, batches: StepLR(optimizer, 1, 0.5), 24, 2)
    assert scheduler.last_epoch == len(rates) == 8


def test_a_schedule_by_epochs_stays_one() -> None:
    with session(accumulate_grad_batches=3):
        training, data = Training(), loader(24, 2)
        scheduler = MultiStepLR(training.optimizer, [len(data)])
        for _ in range(2):
            for x, y in data:
                training.optimizer.zero_grad()
                training.loss(x, y).backward()
                training.optimizer.step()
            scheduler.step()
        assert scheduler.last_epoch == 2


def test_what_a_schedule_is_made_of() -> None:
    optimizer = Training().optimizer
    total = 17
    made = LambdaLR(optimizer, lambda step: step / total)
    assert ("total", 17) in list(numbers_of(made))
    assert ("milestones", 9) in list(numbers_of(MultiStepLR(optimizer, [9])))


def test_averaged_weights_count_real_steps() -> None:
    def averaged(batch: int) -> tuple[int, torch.Tensor]:
        training = Training()
        average = AveragedModel(training.net, multi_avg_fn=get_ema_multi_avg_fn(0.8))
        for x, y in loader(22, batch):
            training.optimizer.zero_grad()
            training.loss(x, y).backward()
            training.optimizer.step()
            average.update_parameters(training.net)
        return int(average.n_averaged), torch.cat(
            [parameter.reshape(-1) for parameter in average.module.parameters()]
        )

    with session(accumulate_grad_batches=3):
        steps, found = averaged(2)
    assert (steps, True) == (4, torch.allclose(found, averaged(6)[1]))


def test_explain_says_where_an_average_of_the_loops_own_belongs() -> None:
    with session(accumulate_grad_batches=3) as s:
        assert "update it in optimizer.register_step_post_hook(...)" in " ".join(
            s.explain().split()
        )
