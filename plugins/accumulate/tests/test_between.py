"""What the loop does to its gradients, and finds in them, between ``zero_grad``, ``backward`` and ``step`` in mid-window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchbus import session
from torchbus.errors import Unsupported

from .small_training import Training, data, loader

WINDOW, BATCH, SAMPLES = 4, 2, 24
Body = Callable[[Training, Tensor, Tensor, int], None]


def batches(by_loader: bool) -> Any:
    return loader(SAMPLES, BATCH) if by_loader else list(zip(*(part.split(BATCH) for part in data(SAMPLES)), strict=True))


def gradients(training: Training) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in training.net.parameters()]


def big_batch() -> Tensor:
    training = Training()
    for x, y in zip(*(part.split(BATCH * WINDOW) for part in data(SAMPLES)), strict=True):
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        training.optimizer.step()
    return training.values()


@pytest.fixture(params=[True, False], ids=["loader", "no loader"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Body], Tensor]]:
    def train(body: Body) -> Tensor:
        with session(accumulate_grad_batches=WINDOW):
            training = Training()
            for index, (x, y) in enumerate(batches(request.param)):
                body(training, x, y, index)
        return training.values()

    yield train


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
    return all(one is not None and other is not None and torch.equal(one, other) for one, other in zip(some, others, strict=True))


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


def calls_backward_for_something_else_once(training: Training, x: Tensor, y: Tensor, index: int) -> None:
    if index == 6:
        (training.loss(x, y) * 7).backward()
    training.optimizer.zero_grad()
    training.loss(x, y).backward()
    training.optimizer.step()


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

    with pytest.raises(Unsupported, match="can't tell them apart"):
        run(body)


def test_another_optimizer_in_mid_window(run: Any) -> None:
    """Its loss reaches the parameters of the first, which clears that before its own backward."""
    other = nn.Linear(1, 3).double()
    made: list[torch.optim.Optimizer] = []

    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        if index == 5:
            made.append(torch.optim.SGD(other.parameters(), lr=0.1))
        for optimizer in made:
            optimizer.zero_grad()
            training.net(other(y.double())).square().mean().backward()
            optimizer.step()
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        training.optimizer.step()

    assert torch.allclose(run(body), big_batch(), rtol=1e-12)


def test_parameters_that_some_batches_do_not_reach(run: Any) -> None:
    """The last layer is frozen for two batches of each window, and its gradients are None in the first of them."""

    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        training.net[2].requires_grad_(index % WINDOW >= 2)
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        training.optimizer.step()

    expected = Training()
    for index, (x, y) in enumerate(batches(by_loader=False)):
        expected.net[2].requires_grad_(index % WINDOW >= 2)
        (expected.loss(x, y) / WINDOW).backward()
        if (index + 1) % WINDOW == 0:
            expected.optimizer.step()
            expected.optimizer.zero_grad()
    assert torch.equal(run(body), expected.values())


def test_gradients_added_to_by_hand(run: Any) -> None:
    """A penalty whose gradient the loop works out itself, after backward."""

    def body(training: Training, x: Tensor, y: Tensor, index: int) -> None:
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        for parameter in training.net.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach(), alpha=0.01 / WINDOW)
        training.optimizer.step()

    expected = Training()
    for x, y in zip(*(part.split(BATCH * WINDOW) for part in data(SAMPLES)), strict=True):
        expected.optimizer.zero_grad()
        expected.loss(x, y).backward()
        for parameter in expected.net.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach(), alpha=0.01)
        expected.optimizer.step()
    assert torch.allclose(run(body), expected.values(), rtol=1e-12)


def test_gradients_assigned_without_a_backward() -> None:
    """They are all weighted alike."""

    def train(training: Training, batch: int) -> Tensor:
        for x, y in zip(*(part.split(batch) for part in data(SAMPLES)), strict=True):
            training.optimizer.zero_grad()
            parameters = list(training.net.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(training.loss(x, y), parameters), strict=True):
                parameter.grad = gradient
            training.optimizer.step()
        return training.values()

    with session(accumulate_grad_batches=WINDOW):
        found = train(Training(), BATCH)
    assert torch.allclose(found, train(Training(), BATCH * WINDOW), rtol=1e-12)
