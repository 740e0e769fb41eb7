"""One count of the loop's real steps, for every plugin."""

from __future__ import annotations

import gc
import operator

import pytest
import torch
from torch.optim import SGD
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError
from torchbus.patches.skipping import Answer
from torchbus.runtime.context import Context


def optimizer() -> SGD:
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.ones(1)
    return SGD([parameter], lr=0.1)


class Counts:
    """A plugin that counts, and hears each step counted."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    @hookimpl
    def session_start(self, session: Context) -> None:
        self.steps = session.steps.follow()

    @hookimpl
    def after_optimizer_step(self) -> None:
        self.heard.append(self.steps.count)


@pytest.mark.parametrize(
    ("turns", "counts"),
    [
        ("aaa", [1, 2, 3]),
        ("abab", [1, 1, 2, 2]),
        ("aaab" * 2, [1, 2, 3, 3, 4, 5, 6, 6]),
        ("aabb", [1, 2, 2, 3]),
        ("abc" * 2, [1, 1, 1, 2, 2, 2]),
    ],
)
def test_optimizers_that_step_in_turn_make_one_step(turns: str, counts: list[int]) -> None:
    plugin, optimizers = Counts(), {name: optimizer() for name in "abc"}
    with session(plugin, strategy=None):
        for name in turns:
            optimizers[name].step()
    assert plugin.heard == counts
    assert plugin.steps.of(optimizers["a"]) == turns.count("a")


def test_an_optimizer_that_the_loop_creates_later_begins_a_step() -> None:
    """Each fold of a cross-validation counts whole. Ranks free optimizers at different times."""
    plugin = Counts()
    with session(plugin, strategy=None):
        for _ in range(3):
            optimizer().step()
            gc.collect()
    assert plugin.heard == [1, 2, 3]


def test_a_step_that_a_plugin_leaves_out_is_none() -> None:
    class LeavesOut:
        @hookimpl
        def step_called(self) -> Answer:
            return Answer()

    plugin = Counts()
    with session(plugin, LeavesOut(), strategy=None) as s:
        one = optimizer()
        one.step()
        assert s._context.steps.count == 0 and plugin.heard == []


def test_it_goes_on_from_a_checkpoint() -> None:
    plugin, a, b = Counts(), optimizer(), optimizer()
    with session(plugin, strategy=None):
        plugin.steps.go_on(7, [(a, 7), (b, 6)], [a])
        for one in (b, a, b):
            one.step()
    assert plugin.heard == [7, 8, 8] and (plugin.steps.of(a), plugin.steps.of(b)) == (8, 8)


READ = operator.attrgetter("_".join(("global", "step")))  # a file that names it begins to count


def trained() -> torch.optim.Optimizer:
    layer = torch.nn.Linear(1, 1)
    made = SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1)).sum().backward()
    made.step()
    made.zero_grad()
    return made


def test_a_count_that_lacks_steps_is_refused() -> None:
    with session(strategy=None) as s:
        trained()
        with pytest.raises(UsageError, match="nothing has counted the steps before"):
            READ(s)
    with session(strategy=None) as s:
        assert READ(s) == 0
        trained()
        assert READ(s) == 1
