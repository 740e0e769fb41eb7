"""The block of a range test, of which nothing remains."""

from __future__ import annotations

import torch
from torchbus import session
from torchbus.bus.base import hookimpl

from torchbus_scale.range_test import without_effect


class Hears:
    def __init__(self, name, heard):
        self.name, self.heard = name, heard

    @hookimpl
    def after_optimizer_step(self):
        self.heard.append(self.name)


class Watches(Hears):
    hears_trials = False


class AlsoHears(Hears):
    pass


class Counts(Hears):
    steps = 0

    @hookimpl
    def after_optimizer_step(self):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Keeps:
    """Has the context, which only plugins get."""

    @hookimpl
    def session_start(self, session):
        self.session = session


def test_watchers_hear_nothing_and_keep_their_place():
    heard, context, counts = [], Keeps(), Counts("counts", [])
    plugins = [Hears("a", heard), Watches("b", heard), AlsoHears("c", heard)]
    with session(context, counts, *plugins):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        names = [name for name, _ in context.session.bus.plugins()]
        optimizer.step()
        with without_effect(context.session):
            optimizer.step()
            torch.rand(3)
            assert [name for name, _ in context.session.bus.plugins()] == names
            assert counts.steps == 2
        assert counts.steps == 1
        optimizer.step()
        assert [name for name, _ in context.session.bus.plugins()] == names
    assert "".join(heard) == "cba" + "ca" + "cba"


def test_random_numbers_go_on_as_before():
    context = Keeps()
    with session(context):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        with without_effect(context.session):
            torch.rand(7)
        assert torch.equal(torch.rand(3), expected)


def test_a_plugin_that_comes_meanwhile_stays():
    heard, context = [], Keeps()
    with session(context, Watches("b", heard)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        with without_effect(context.session):
            context.session.bus.register(Hears("new", heard))
        optimizer.step()
    assert heard == ["new", "b"]


def test_counts_of_filters_are_left_alone():
    class Every(Keeps):
        @hookimpl(every=3)
        def after_optimizer_step(self):
            pass

    every = Every()
    with session(every):
        counts = dict(every.session.bus.plugins())["filters"]
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        optimizer.step()
        with without_effect(every.session):
            optimizer.step()
        assert list(counts.state_dict().values()) == [1]
