"""``optimizer_ready``: once per optimizer, complete, before the loop uses it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.bus.base import hookimpl


class Ready:
    """Writes down how many groups each optimizer has, and what other listeners hear."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        self.heard.append((type(optimizer).__name__, len(optimizer.param_groups)))

    @hookimpl
    def before_backward(self) -> None:
        self.heard.append("backward")


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


USES = {
    "loader": lambda model, optimizer: next(iter(DataLoader(torch.ones(2, 2)))),
    "model": lambda model, optimizer: model(torch.ones(1, 2)),
    "zero_grad": lambda model, optimizer: optimizer.zero_grad(),
    "step": lambda model, optimizer: optimizer.step(),
}


@pytest.mark.parametrize("use", USES)
def test_an_optimizer_is_told_of_once_with_all_its_groups(use: str, model: nn.Module) -> None:
    ready = Ready()
    with session(ready):
        optimizer = SGD([model.weight], lr=0.1)
        optimizer.add_param_group({"params": [model.bias]})
        assert ready.heard == []
        USES[use](model, optimizer)
        assert ready.heard == [("SGD", 2)]
        for one in USES:
            USES[one](model, optimizer)
    assert ready.heard == [("SGD", 2)]


def test_before_the_listeners_of_the_use(model: nn.Module) -> None:
    ready = Ready()
    with session(ready):
        loss = model(torch.ones(1, 2)).sum()
        Adam(model.parameters()).zero_grad()
        later = SGD(model.parameters(), lr=0.1)
        loss.backward()
        del later
    assert ready.heard == [("Adam", 1), ("SGD", 1), "backward"]


def test_one_that_was_there_before(model: nn.Module) -> None:
    ready, optimizer = Ready(), SGD(model.parameters(), lr=0.1)
    with session(ready):
        assert ready.heard == []
        optimizer.zero_grad()
    assert ready.heard == [("SGD", 1)]


def test_a_plugin_that_comes_late(model: nn.Module) -> None:
    ready = Ready()
    with session() as s:
        SGD(model.parameters(), lr=0.1).zero_grad()
        s.add_plugin(ready)
        Adam(model.parameters()).zero_grad()
    assert ready.heard == [("Adam", 1)]


def test_nothing_stays_that_costs_in_a_step(model: nn.Module) -> None:
    ready = Ready()
    with session(ready) as s:
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        for event in ("before_zero_grad", "step_called", "loader_start"):
            assert not s._context.bus.has_listeners(event)
