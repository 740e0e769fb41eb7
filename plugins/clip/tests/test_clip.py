"""Clipping against clip_grad_norm_ and clip_grad_value_ written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torchbus import hookimpl, session
from torchbus.errors import UsageError

from torchbus_clip import Clip


def train(clip: Any = None, closures: bool = False, make: Any = torch.optim.SGD) -> Tensor:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    optimizer = make(net.parameters(), lr=0.1)
    for x in torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1)):

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            if clip:
                clip(net.parameters())
            return loss

        if closures:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return net.weight.detach()


@pytest.mark.parametrize("closures", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "clip"), [("norm", clip_grad_norm_), ("value", clip_grad_value_)]
)
def test_equals_clipping_by_hand(algorithm: str, clip: Any, closures: bool) -> None:
    with session(gradient_clip_val=0.05, gradient_clip_algorithm=algorithm):
        found = train(closures=closures)
    assert torch.equal(found, train(lambda parameters: clip(parameters, 0.05), closures))
    assert not torch.equal(found, train())


def test_every_evaluation_of_a_closure_is_clipped() -> None:
    with session(gradient_clip_val=0.05):
        found = train(closures=True, make=torch.optim.LBFGS)
    assert torch.equal(
        found, train(lambda parameters: clip_grad_norm_(parameters, 0.05), True, torch.optim.LBFGS)
    )


def test_the_norm_can_be_read() -> None:
    with session(gradient_clip_val=0.05) as s:
        train()
        assert s.gradient_norm > 0.05


class Reader:
    """Reads the gradients of each step twice: in the order of registration, and last."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.last: list[float] = []

    @hookimpl
    def gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        self.norms.append(norm_of(optimizer))

    @hookimpl(trylast=True, specname="gradients_ready")
    def finally_ready(self, optimizer: torch.optim.Optimizer) -> None:
        self.last.append(norm_of(optimizer))


def norm_of(optimizer: torch.optim.Optimizer) -> float:
    gradients = [one.grad for one in optimizer.param_groups[0]["params"]]
    return float(nn.utils.get_total_norm(gradients))


def test_plugins_get_the_final_gradients() -> None:
    for plugins, options in (
        ([reader := Reader()], {"gradient_clip_val": 0.05}),
        ([Clip(0.05), after := Reader()], {}),
    ):
        with session(*plugins, **options):
            train()
    assert reader.norms == reader.last == after.last == pytest.approx([0.05] * 6, rel=1e-4)


def test_nothing_is_clipped_without_a_limit() -> None:
    with session("clip"):
        found = train()
    assert torch.equal(found, train())


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("limit", [0, 0.0, None])
def test_a_limit_of_zero_clips_nothing(limit: float | None, algorithm: str) -> None:
    """As in Lightning; it does not freeze the model."""
    with session(gradient_clip_val=limit, gradient_clip_algorithm=algorithm) as s:
        found = train()
        assert ("gradient_clip_val=0: nothing is clipped" in s.explain()) is (limit is not None)
        assert s.gradient_norm is None
    assert torch.equal(found, train())


def test_the_norm_without_a_limit_is_refused() -> None:
    with (
        session() as s,
        pytest.raises(
            UsageError,
            match=r"^s\.gradient_norm without gradient_clip_val=\.\.\.: it would always be the same",
        ),
    ):
        _ = s.gradient_norm


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_clip_val": "1"}, "it must be a number"),
        ({"gradient_clip_val": True}, "it must be a number"),
        ({"gradient_clip_val": [1.0]}, "it must be a number"),
        ({"gradient_clip_val": -1.0}, "0 or more"),
        ({"gradient_clip_val": float("nan")}, "0 or more"),
        ({"gradient_clip_val": -float("inf")}, "0 or more"),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "l2"}, "'norm' or 'value'"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


def train_embedding(sparse: bool) -> Tensor:
    torch.manual_seed(0)
    table, head = nn.Embedding(10, 3, sparse=sparse), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (10 * head(table(torch.tensor([1, 1, 2, 5]))).square().mean()).backward()
        optimizer.step()
    return torch.cat([table.weight.flatten(), head.weight.flatten()]).detach()


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_sparse_gradients_are_clipped_as_dense_ones(algorithm: str) -> None:
    with session(gradient_clip_val=0.05, gradient_clip_algorithm=algorithm):
        sparse, dense = train_embedding(sparse=True), train_embedding(sparse=False)
    assert torch.allclose(sparse, dense, atol=1e-7) and not torch.allclose(
        dense, train_embedding(sparse=False), atol=1e-3
    )


@pytest.mark.parametrize("limit", [1e30, 0.1])
def test_a_differentiable_step_can_be_differentiated_through_clipping(limit: float) -> None:
    def gradient(clipped: bool) -> Tensor | None:
        start = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, requires_grad=True)
        given = torch.linspace(1.0, 2.0, 5, dtype=torch.float64, requires_grad=True)
        weight = start.clone()
        weight.grad = (
            given * torch.clamp(limit / (given.norm() + 1e-6), max=1.0) if clipped else given
        )
        torch.optim.SGD([weight], lr=0.1, differentiable=True).step()
        weight.square().sum().backward()
        return given.grad

    with session(gradient_clip_val=limit):
        found = gradient(clipped=False)
    expected = gradient(clipped=True)
    assert found is not None and expected is not None and torch.equal(found, expected)


def test_clipping_of_the_loops_own_takes_keywords_inside_a_session() -> None:
    weight = nn.Parameter(torch.ones(3))
    with session("log"):
        weight.grad = torch.full((3,), 5.0)
        norm = clip_grad_norm_(
            parameters=[weight], max_norm=1.0, norm_type=2.0, error_if_nonfinite=True, foreach=False
        )
        assert norm.item() == pytest.approx(75**0.5) and weight.grad.norm().item() == pytest.approx(
            1.0
        )
        clip_grad_value_(clip_value=0.2, parameters=[weight])
        assert weight.grad.tolist() == pytest.approx([0.2] * 3)
        weight.grad = torch.full((3,), float("nan"))
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def test_a_step_that_takes_the_loss_gets_the_loss() -> None:
    class Polyak(torch.optim.SGD):
        def step(self, loss: Any = None) -> str:
            return type(loss).__name__

    optimizer = Polyak([nn.Parameter(torch.ones(1))], lr=0.1)
    with session(gradient_clip_val=1.0, accumulate_grad_batches=1):
        assert optimizer.step(torch.ones(())) == "Tensor"
