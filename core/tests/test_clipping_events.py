"""Gradient clipping by the loop: a listener sees the call, and its answer is what the loop gets."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torchbus import session
from torchbus.bus.base import hookimpl


class Clipping:
    def __init__(self, norm: object = None, done: object = None) -> None:
        self.heard: list[object] = []
        self._norm, self._done = norm, done

    @hookimpl
    def clip_gradients(self, parameters, max_norm, norm_type, run):
        self.heard.append((len(parameters), max_norm, norm_type))
        return self._norm(run) if self._norm else None

    @hookimpl
    def clip_gradient_values(self, parameters, clip_value):
        self.heard.append((len(parameters), clip_value))
        return self._done

    @hookimpl
    def gradient_norm(self, norm):
        self.heard.append(norm.item())


@pytest.fixture
def weights() -> list[torch.Tensor]:
    found = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    for weight, gradient in zip(found, (3.0, 4.0), strict=True):
        weight.grad = torch.tensor([gradient])
    return found


def gradients(weights: list[torch.Tensor]) -> list[float]:
    return [round(weight.grad.item(), 4) for weight in weights]


def test_a_listener_sees_the_call_and_torch_clips(weights: list[torch.Tensor]) -> None:
    plugin = Clipping()
    with session(plugin):
        norm = clip_grad_norm_((weight for weight in weights), 1.0, norm_type=2)
    assert plugin.heard == [(2, 1.0, 2), 5.0] and norm.item() == 5.0
    assert gradients(weights) == [0.6, 0.8]


def test_the_answer_is_the_norm_that_the_loop_gets(weights: list[torch.Tensor]) -> None:
    plugin = Clipping(lambda run: run(math.inf) * 2)
    with session(plugin):
        norm = clip_grad_norm_(weights, 1.0, math.inf, error_if_nonfinite=True)
    assert plugin.heard == [(2, 1.0, math.inf), 8.0] and norm.item() == 8.0
    assert gradients(weights) == [3.0, 4.0]


def test_one_tensor_is_a_list_of_one(weights: list[torch.Tensor]) -> None:
    plugin = Clipping()
    with session(plugin):
        clip_grad_norm_(weights[0], max_norm=1.5)
    assert plugin.heard == [(1, 1.5, 2.0), 3.0] and gradients(weights) == [1.5, 4.0]


@pytest.mark.parametrize(("done", "after"), [(None, [3.0, 3.5]), (True, [3.0, 4.0])])
def test_values(weights: list[torch.Tensor], done: object, after: list[float]) -> None:
    plugin = Clipping(done=done)
    with session(plugin):
        clip_grad_value_(iter(weights), clip_value=3.5)
    assert plugin.heard == [(2, 3.5)] and gradients(weights) == after
