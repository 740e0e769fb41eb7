"""Steps of optimizers, whatever the loop gives them."""

from __future__ import annotations

import pytest
import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.patches.skipping import Answer

from torchbus_testing.recorder import Recorder


class Steps:
    """Hears every event of a step."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    @hookimpl
    def step_called(self, optimizer, closure, run):
        self.heard.append("called with a closure" if closure else "called")
        return Answer(run(closure))

    @hookimpl
    def before_optimizer_step(self, optimizer, closure):
        self.heard.append("before with a closure" if closure else "before")

    @hookimpl
    def gradients_ready(self, optimizer, closure):
        self.heard.append("closure" if closure else "ready")

    @hookimpl
    def after_optimizer_step(self, optimizer):
        self.heard.append("after")


class Told(torch.optim.SGD):
    """Its step returns what it was given."""

    def step(self, loss=None, *more, scale=1.0):
        return loss, more, scale


class KeywordOnly(torch.optim.SGD):
    def step(self, *, closure=None):
        return closure() if closure else None


class LossFirst(torch.optim.SGD):
    def step(self, loss, closure=None, model=None):
        return loss, closure(True, again=2) if closure else None, model


def make(cls):
    return cls([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def test_a_step_gets_what_the_loop_gave():
    loss, model = torch.ones(()), torch.nn.Linear(1, 1)
    steps = Steps()
    with session(steps, strategy=None):
        told = make(Told)
        assert told.step(loss) == (loss, (), 1.0)
        assert told.step(loss, model, scale=2.0) == (loss, (model,), 2.0)
        assert told.step() == (None, (), 1.0)
        assert set(steps.heard) == {"called", "before", "ready", "after"} and len(steps.heard) == 12
        first = make(LossFirst)
        assert first.step(loss, model=model) == (loss, None, model)
        assert first.step(loss, lambda *given, **named: (given, named)) == (
            loss,
            ((True,), {"again": 2}),
            None,
        )
        assert steps.heard[-4:] == [
            "called with a closure",
            "before with a closure",
            "closure",
            "after",
        ]


def test_a_closure_is_found_wherever_the_step_takes_it():
    steps = Steps()
    with session(steps, strategy=None):
        assert make(KeywordOnly).step(closure=lambda: 7) == 7
        assert make(KeywordOnly).step() is None
        assert make(torch.optim.SGD).step(lambda: 8.0) == 8.0
        assert make(torch.optim.SGD).step(closure=lambda: 9.0) == 9.0
    assert steps.heard.count("closure") == 3 and steps.heard.count("called") == 1


def test_a_closure_can_be_left_out_of_a_step():
    class Without:
        @hookimpl
        def step_called(self, optimizer, closure, run):
            return Answer(run())

    with session(Without(), strategy=None):
        assert make(KeywordOnly).step(closure=lambda: 7) is None
        assert make(LossFirst).step("loss", lambda: 7) == ("loss", None, None)
        assert make(torch.optim.SGD).step(lambda: 8.0) is None


def test_a_step_that_calls_its_parents_is_one_step_also_after_one_that_raised():
    class Child(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    make(torch.optim.SGD)  # from now on torch's own hooks run in the parent's step as well
    steps = Steps()
    with session(steps, strategy=None):
        child = make(Child)
        child.step(lambda: 1.0)
        assert steps.heard == ["called with a closure", "before with a closure", "closure", "after"]
        with pytest.raises(ZeroDivisionError):
            child.step(lambda: 1 / 0)
        steps.heard.clear()
        child.step()
        assert steps.heard == ["called", "before", "ready", "after"]


def test_a_step_that_raises_is_told():
    """Whether its closure has raised, or a hook of the script's own."""
    recorder = Recorder("before_optimizer_step", "step_failed", "after_optimizer_step")
    with session(recorder, strategy=None):
        optimizer = make(torch.optim.SGD)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        optimizer.step()
        optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
    one = ["before_optimizer_step", "step_failed"]
    assert recorder.names == [*one, "before_optimizer_step", "after_optimizer_step", *one]


def test_a_strategys_own_backward_is_no_other_one_of_the_loops():
    heard = []

    class Engine:
        owns = ("strategy",)

        @hookimpl
        def before_backward(self):
            heard.append("before")

        @hookimpl
        def run_backward(self, call, engine):
            call.loss.backward()

    weight = torch.nn.Parameter(torch.ones(1))
    with session(strategy=Engine()):
        for _ in range(2):
            (weight * 2).sum().backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).sum().backward()
        (weight * 2).sum().backward()
    assert weight.grad.item() == 6.0 and heard == ["before"] * 4
