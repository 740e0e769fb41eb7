"""What the loop does to its gradients, and finds in them, between ``zero_grad``, ``backward`` and
``step`` in mid-window.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchbus.errors import Unsupported

from .between_runs import WINDOW, Body, batches, big_batch
from .windows_by_hand import Training


def gradients(training: Training) -> list[Tensor | None]:
    return [
        None if parameter.grad is None else parameter.grad.clone()
        for parameter in training.net.parameters()
    ]


def test_gradients_are_the_sum_so_far(run: Any) -> None:
    expected = sums_by_hand()

    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        training.optimizer.zero_grad()
        assert gradients(training) == [None] * 4
        training.loss(x, y).backward()
        assert equal(gradients(training), expected[index])
        training.optimizer.step()
        assert equal(gradients(training), expected[index])

    run(body)


def sums_by_hand() -> list[list[Tensor | None]]:
    training, found = Training(), []
    for index, (x, y) in enumerate(batches(by_loader=False)):
        (training.loss(x, y) / WINDOW).backward()
        found.append(gradients(training))
        if (index + 1) % WINDOW == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()
    return found


def equal(some: list[Tensor | None], others: list[Tensor | None]) -> bool:
    return all(
        one is not None and other is not None and torch.equal(one, other)
        for one, other in zip(some, others, strict=True)
    )


def clears_twice(training: Training, x: Tensor, y: Tensor, index: int) -> None:
    training.net.zero_grad()
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()


def clears_before_and_after(training: Training, x: Tensor, y: Tensor, index: int) -> None:
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()
    training.net.zero_grad()


def clears_another_way_later(training: Training, x: Tensor, y: Tensor, index: int) -> None:
    if index < 6:
        training.optimizer.zero_grad()
    else:
        training.net.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()


def replaces_after_backward(training: Training, x: Tensor, y: Tensor, index: int) -> None:
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    for parameter in training.net.parameters():
        parameter.grad = parameter.grad * 1.0 if parameter.grad is not None else None
    training.optimizer.step()


def calls_backward_for_something_else(training: Training, x: Tensor, y: Tensor, index: int) -> None:
    (training.loss(x, y) * 7).backward()
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()


def calls_backward_for_something_else_once(
    training: Training, x: Tensor, y: Tensor, index: int
) -> None:
    if index == 6:
        (training.loss(x, y) * 7).backward()
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "body",
    [
        clears_twice,
        clears_before_and_after,
        clears_another_way_later,
        replaces_after_backward,
        calls_backward_for_something_else,
        calls_backward_for_something_else_once,
    ],
)
def test_equals_the_big_batch(run: Any, body: Body) -> None:
    assert torch.allclose(run(body), big_batch(), rtol=1e-12)


@pytest.mark.parametrize("when", [1, 6])
def test_gradients_cleared_in_place_are_refused(run: Any, when: int) -> None:
    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        if index == when:
            training.net.zero_grad(set_to_none=False)
        else:
            training.optimizer.zero_grad()
        training.loss(x, y).backward()
        training.optimizer.step()

    with pytest.raises(Unsupported, match="changed in place"):
        run(body)


def test_clearing_between_two_backwards_is_refused_where_it_comes_late(run: Any) -> None:
    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        if index == 6:
            training.optimizer.zero_grad()
            training.loss(x, y).backward()
        training.optimizer.step()

    with pytest.raises(Unsupported, match="can't be removed"):
        run(body)
