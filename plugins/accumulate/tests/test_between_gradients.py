"""Gradients of parameters that some batches do not reach, that are added to, or assigned, inside a window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchbus import session

from .between_runs import BATCH, SAMPLES, WINDOW, batches, big_batch
from .windows_by_hand import Training, data


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
    """The last layer is frozen for two batches of each window, and its gradients are None in the
    first of them.
    """

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
    with pytest.warns(UserWarning, match="the gradients of SGD were changed"):
        values = run(body)
    assert torch.allclose(values, expected.values(), rtol=1e-12)


def test_gradients_assigned_without_a_backward() -> None:
    """They are all weighted alike."""

    def train(training: Training, batch: int) -> Tensor:
        for x, y in zip(*(part.split(batch) for part in data(SAMPLES)), strict=True):
            training.optimizer.zero_grad()
            parameters = list(training.net.parameters())
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(training.loss(x, y), parameters), strict=True
            ):
                parameter.grad = gradient
            training.optimizer.step()
        return training.values()

    with session(accumulate_grad_batches=WINDOW):
        found = train(Training(), BATCH)
    assert torch.allclose(found, train(Training(), BATCH * WINDOW), rtol=1e-12)
