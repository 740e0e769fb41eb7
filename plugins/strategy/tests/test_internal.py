"""Optimizers that a plugin makes for its own use, and warnings that it ignores."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.objects import mark_internal

from torchbus_strategy.internal import making_internal
from torchbus_strategy.user_code import muted


class Events:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def _hear(self, optimizer: Optimizer) -> None:
        self.heard.append(type(optimizer).__name__)

    @hookimpl
    def parameters_added(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def optimizer_ready(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def before_zero_grad(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def gradients_cleared(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def step_called(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def before_optimizer_step(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def gradients_ready(self, optimizer):
        self._hear(optimizer)

    @hookimpl
    def after_optimizer_step(self, optimizer):
        self._hear(optimizer)


class Inner(SGD):
    pass


def use(optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    optimizer.step()
    optimizer.step(lambda: torch.zeros(()))


def test_no_event_is_sent_for_them() -> None:
    events, model = Events(), nn.Linear(2, 1)
    with session(events) as s:
        with making_internal():
            inner = Inner(model.parameters(), lr=0.1)
            inner.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
            copied = copy.deepcopy(inner)
        use(inner)
        use(copied)
        assert events.heard == []
        assert "Inner" not in s.explain()
        use(Adam(model.parameters()))
        assert len(events.heard) == 12 and {*events.heard} == {"Adam"}


def test_a_marked_one_is_silent_from_then_on() -> None:
    events = Events()
    with session(events):
        optimizer = SGD(nn.Linear(2, 1).parameters(), lr=0.1)
        events.heard.clear()
        use(mark_internal(optimizer))
    assert events.heard == []


def test_the_session_of_another_is_as_before() -> None:
    before = Optimizer.add_param_group, Optimizer.__setstate__
    with making_internal():
        pass
    assert before == (Optimizer.add_param_group, Optimizer.__setstate__)


class Keeps:
    """An open window, and an engine that asks whether it is open."""

    def __init__(self, kept: bool) -> None:
        self._kept = kept
        self.heard: list[bool] = []

    @hookimpl
    def before_zero_grad(self):
        return self._kept

    @hookimpl
    def gradients_cleared(self, kept):
        self.heard.append(kept)


def test_whether_gradients_are_kept_is_told() -> None:
    for kept in (True, False):
        plugin, weight = Keeps(kept), torch.ones(1, requires_grad=True)
        with session(plugin):
            optimizer = SGD([weight], lr=0.1)
            weight.sum().backward()
            optimizer.zero_grad()
        assert plugin.heard == [kept]
        assert (weight.grad is not None) == kept


def test_a_filter_of_the_script_stays_that_a_library_call_sets_too():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "abc", UserWarning)
        with muted("abc", UserWarning):
            warnings.warn("abc", stacklevel=1)
        warnings.warn("abc", stacklevel=1)
