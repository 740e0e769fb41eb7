"""The loop sees true losses and true gradients, whatever the loss is scaled by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchbus import session

from .autocast_by_hand import batches, net, sgd


def test_the_loop_sees_true_losses_and_true_gradients() -> None:
    with session(precision="16-mixed"):
        model = net()
        _optimizer = sgd(model.parameters())
        loss = model(batches()[0]).square().mean()
        value = loss.item()
        loss.backward()
    plain = net()
    plain(batches()[0]).square().mean().backward()
    assert loss.item() == value
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=0.05, atol=1e-3)


def test_two_losses_into_the_same_gradients() -> None:
    def run(scale: float, cast: bool) -> Tensor:
        model = net()
        _optimizer = sgd(model.parameters())
        for x in batches()[:2]:
            with torch.autocast("cpu", torch.float16) if cast else contextlib.nullcontext():
                output = model(x)
            (output.float().square().mean() * scale).backward()
        return torch.cat([parameter.grad.reshape(-1) / scale for parameter in model.parameters()])

    with session(precision="16-mixed"):
        found = run(1.0, False)
    assert torch.equal(found, run(65536.0, True))


@pytest.fixture
def _double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_double_by_default")
def test_losses_are_scaled_whatever_dtype_is_the_default() -> None:
    with session(precision="16-mixed"):
        model = nn.Linear(3, 1, dtype=torch.float32)
        optimizer = sgd(model.parameters())
        before = model.weight.clone()
        (model(torch.ones(2, 3, dtype=torch.float32)).mean() * 1e-2).backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise KeyError


def test_gradients_of_tensors_in_no_optimizer_are_true_values() -> None:
    def run() -> list[Tensor]:
        model, other = net(), nn.Linear(1, 1)
        _optimizer = sgd(model.parameters())
        x = batches()[0].requires_grad_()
        with torch.no_grad():
            other.weight.fill_(0.5)
            other.bias.zero_()
        for _ in range(2):
            (other(model(x)).square().mean() / 8).backward()
        assert x.grad is not None and other.weight.grad is not None
        return [x.grad, other.weight.grad]

    with session(precision="16-mixed"):
        found = run()
    for one, expected in zip(found, run(), strict=True):
        assert torch.allclose(one, expected, rtol=0.02, atol=1e-4)


def test_a_backward_that_raises_leaves_true_gradients() -> None:
    with session(precision="16-mixed"):
        model = net()
        _optimizer = sgd(model.parameters())
        model(batches()[0]).square().mean().backward()
        before = [
            parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
        ]
        with pytest.raises(KeyError):
            Raises.apply(model(batches()[1])).sum().backward()
        assert all(
            torch.equal(one, parameter.grad)
            for one, parameter in zip(before, model.parameters(), strict=True)
            if parameter.grad is not None
        )
