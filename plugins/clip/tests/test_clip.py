"""Clipping against clip_grad_norm_ and clip_grad_value_ written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torchbus import session
from torchbus.errors import UsageError


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
@pytest.mark.parametrize(("algorithm", "clip"), [("norm", clip_grad_norm_), ("value", clip_grad_value_)])
def test_equals_clipping_by_hand(algorithm: str, clip: Any, closures: bool) -> None:
    with session(gradient_clip_val=0.05, gradient_clip_algorithm=algorithm):
        found = train(closures=closures)
    assert torch.equal(found, train(lambda parameters: clip(parameters, 0.05), closures))
    assert not torch.equal(found, train())


def test_every_evaluation_of_a_closure_is_clipped() -> None:
    with session(gradient_clip_val=0.05):
        found = train(closures=True, make=torch.optim.LBFGS)
    assert torch.equal(found, train(lambda parameters: clip_grad_norm_(parameters, 0.05), True, torch.optim.LBFGS))


def test_the_norm_can_be_read() -> None:
    with session(gradient_clip_val=0.05) as s:
        train()
        assert s.gradient_norm > 0.05


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
    with session() as s, pytest.raises(UsageError, match=r"^s\.gradient_norm without gradient_clip_val=\.\.\.: it would always be the same"):
        _ = s.gradient_norm


@pytest.mark.parametrize(("options", "words"), [
    ({"gradient_clip_val": "1"}, "it must be a number"),
    ({"gradient_clip_val": True}, "it must be a number"),
    ({"gradient_clip_val": [1.0]}, "it must be a number"),
    ({"gradient_clip_val": -1.0}, "0 or more"),
    ({"gradient_clip_val": float("nan")}, "0 or more"),
    ({"gradient_clip_val": -float("inf")}, "0 or more"),
    ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "l2"}, "'norm' or 'value'"),
])  # fmt: skip
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
