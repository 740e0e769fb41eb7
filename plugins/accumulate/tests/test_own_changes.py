"""What a loop changes by itself in mid-window: refused within a batch, said between batches."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torchbus import session
from torchbus.errors import Unsupported

from .between_runs import Body
from .windows_by_hand import Training, loader, unchanged

Way = Callable[[Tensor, Tensor], object]


@torch.no_grad()
def in_place(parameter: Tensor, move: Tensor) -> None:
    parameter.add_(move)


def by_data(parameter: Tensor, move: Tensor) -> None:
    parameter.data.add_(move)


def sam(move: Way) -> Body:
    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        moves = [0.05 * parameter.grad for parameter in training.net.parameters()]  # type: ignore[operator]
        for parameter, each in zip(training.net.parameters(), moves, strict=True):
            move(parameter, each)
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        for parameter, each in zip(training.net.parameters(), moves, strict=True):
            move(parameter, -each)
        training.optimizer.step()

    return body


@pytest.mark.parametrize("move", [in_place, by_data])
def test_parameters_that_move_within_a_batch_are_refused(run: Any, move: Way) -> None:
    with pytest.raises(Unsupported, match="changed between two backward.. calls of one batch"):
        run(sam(move))


def test_those_of_a_table_that_is_renormalised_are_not() -> None:
    with session(accumulate_grad_batches=2):
        table = torch.nn.Embedding(4, 2, max_norm=0.1)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(4):
            table(torch.arange(4)).sum().backward()
            table(torch.arange(4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def said(run: Any, change: Callable[[Training], None], when: str) -> list[str]:
    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        change(training) if when == "before" else None
        training.optimizer.step()
        change(training) if when == "after" else None

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(body)
    return [str(one.message) for one in caught]


def decay(training: Training) -> None:
    for parameter in training.net.parameters():
        parameter.data.mul_(0.99)


def clip_by_hand(training: Training) -> None:
    for parameter in training.net.parameters():
        parameter.grad = parameter.grad.clamp(-0.01, 0.01)  # type: ignore[union-attr]


def clip(training: Training) -> None:
    torch.nn.utils.clip_grad_norm_(training.net.parameters(), 0.01)


@pytest.mark.share(2)
def test_what_moves_them_between_batches_is_said_once(run: Any) -> None:
    (words,) = said(run, decay, "after")
    assert "register_step_post_hook" in words


@pytest.mark.share(2)
def test_gradients_that_the_loop_changes_are_said_once(run: Any) -> None:
    (words,) = said(run, clip_by_hand, "before")
    assert "register_step_pre_hook" in words
    assert said(run, clip, "before") == []


@pytest.mark.share(2)
@pytest.mark.parametrize("own", [True, False])
def test_an_average_that_the_loop_updates_is_said_once(run: Any, own: bool) -> None:
    averages: dict[int, Any] = {}

    def update(training: Training) -> None:
        if id(training) not in averages:
            copied = copy.deepcopy(training.net) if own else AveragedModel(training.net)
            averages[id(training)] = copied
        average = averages[id(training)]
        if not own:
            return average.update_parameters(training.net)
        for mean, now in zip(average.parameters(), training.net.parameters(), strict=True):
            mean.data = 0.9 * mean.data + 0.1 * now.data

    found = said(run, update, "after")
    assert [words for words in found if "an average of weights (EMA)" in words] == found
    assert len(found) == own


def test_several_steps_on_a_batch_are_refused() -> None:
    with (
        pytest.raises(Unsupported, match="several steps of SGD on one batch"),
        session(accumulate_grad_batches=2),
    ):
        training = Training()
        for x, y in loader(8, 2):
            for _ in range(2):
                training.optimizer.zero_grad()
                training.loss(x, y).backward()
                training.optimizer.step()


def test_windows_of_one_batch_allow_them() -> None:
    def twice(batches: Any) -> Tensor:
        training = Training()
        for x, y in batches:
            unchanged(training, [(x, y), (x, y)], epochs=1)
        return training.values()

    plain = twice(loader(8, 2))
    with session(accumulate_grad_batches={0: 1, 1: 4}):
        assert torch.equal(twice(loader(8, 2)), plain)
