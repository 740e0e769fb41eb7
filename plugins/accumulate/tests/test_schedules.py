"""Schedules and averages of weights under windows: those of the one big batch."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
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
        assert "is the loop's number of batches): a real step advances it by those" in " ".join(
            s.explain().split()
        )
    expected, _, of_big = train(make, 24, 6)
    assert scheduler.last_epoch == 24
    assert rates == pytest.approx(of_big)
    assert torch.allclose(training.values(), expected.values())


def warmed_up(optimizer: Any, steps: int) -> SequentialLR:
    parts = [LinearLR(optimizer, 0.1, 1.0, 3), CosineAnnealingLR(optimizer, steps - 3)]
    return SequentialLR(optimizer, parts, [3])


def falling(optimizer: Any, steps: int) -> LinearLR:
    return LinearLR(optimizer, 1.0, 0.0, steps)


def one_cycle(optimizer: Any, steps: int) -> OneCycleLR:
    return OneCycleLR(optimizer, 0.1, total_steps=steps + 1, cycle_momentum=False)


def pass_over(training: Training, data: Any, scheduler: Any) -> None:
    for x, y in data:
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        training.optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("epochs", [3, 4])  # 4 epochs are as many batches per step
@pytest.mark.parametrize(
    "make",
    [CosineAnnealingLR, linear, falling, warmed_up, one_cycle],
    ids=lambda make: make.__name__,
)
def test_a_length_in_batches_and_one_in_real_steps_both_end_with_the_loop(
    make: Any, epochs: int
) -> None:
    for divided in (False, True):
        with session(accumulate_grad_batches=4):
            training, data = Training(), loader(16, 2)
            count = epochs * len(data)
            scheduler = make(training.optimizer, count // 4 if divided else count)
            for _epoch in range(1, epochs + 1):
                pass_over(training, data, scheduler)
        assert scheduler.last_epoch == (count // 4 if divided else count)


def test_a_length_with_the_shorter_window_of_each_epoch() -> None:
    """Nine steps are three epochs of three windows, and not one pass over nine batches."""
    with session(accumulate_grad_batches=4):
        training, data = Training(), loader(18, 2)
        epochs = 3
        scheduler = CosineAnnealingLR(training.optimizer, epochs * math.ceil(len(data) / 4))
        for _epoch in range(epochs):
            pass_over(training, data, scheduler)
    assert scheduler.last_epoch == scheduler.T_max == 9


def test_what_says_how_long_the_loop_is() -> None:
    def of_an_object(training: Training, data: Any, scheduler: Any, given: Any) -> None:
        for _ in range(given.epochs):
            pass_over(training, data, scheduler)

    def by_steps(training: Training, data: Any, scheduler: Any, given: Any) -> None:
        batches = iter(data)
        for _ in range(given.config["steps"]):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(data)
                x, y = next(batches)
            training.loss(x, y).backward()
            training.optimizer.step()
            scheduler.step()
            training.optimizer.zero_grad()

    given = SimpleNamespace(epochs=4, config={"steps": 32})
    for run in (of_an_object, by_steps):
        for length in (32, 8):
            with session(accumulate_grad_batches=4):
                training, data = Training(), loader(16, 2)
                assert len(data) == 8
                scheduler = CosineAnnealingLR(training.optimizer, length)
                run(training, data, scheduler, given)
            assert scheduler.last_epoch == length, run


@pytest.mark.parametrize(("length", "warns"), [(8, True), (32, False)])
def test_without_it_a_schedule_that_ends_early_is_named(length: int, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as caught, session(accumulate_grad_batches=4):
        warnings.simplefilter("always")
        training, data, epoch = Training(), loader(16, 2), 0
        assert len(data) == 8
        scheduler = CosineAnnealingLR(training.optimizer, length)
        while epoch < 4:
            pass_over(training, data, scheduler)
            epoch += 1
    found = [one for one in caught if "CosineAnnealingLR has ended, and the" in str(one.message)]
    assert len(found) == warns
    assert not found or found[0].filename == __file__


@pytest.mark.slow
def test_one_cycle_ends_with_the_loop() -> None:
    with session(accumulate_grad_batches=4):
        _, scheduler, rates = train(
            lambda optimizer, batches: OneCycleLR(optimizer, 0.1, total_steps=batches + 1), 22, 2
        )
    assert scheduler.last_epoch == 22
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
