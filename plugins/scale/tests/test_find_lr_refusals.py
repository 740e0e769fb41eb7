"""What the range test suggests, and what it refuses."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError

from torchbus_scale.rates import LearningRates, smooth, spread

LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "range_loop.py"))
make, step_of = LOOP["make"], LOOP["step_of"]


def test_the_steepest_fall_is_suggested():
    """In spite of noise, of a slow fall before, and of a divergence with steeper falls."""
    lrs = tuple(spread(1e-4, 1.0, 100))
    torch.manual_seed(0)
    noise = torch.randn(100).mul(0.3).tolist()
    fall = [5 - 3 * math.tanh((index - 50) / 8) + noise[index] for index in range(100)]
    losses = [*fall[:80], *(one * 20 ** (index % 3) for index, one in enumerate(fall[80:]))]
    suggestion = LearningRates(lrs, tuple(losses), True).suggestion
    assert lrs[45] < suggestion < lrs[55]
    assert LearningRates(lrs, tuple(range(100)), False).suggestion is None
    assert (
        repr(LearningRates((1e-7, 0.5), (1.0, 0.5), True))
        == "<2 rates from 1e-07 to 0.5, suggestion=None, diverged=True>"
    )
    assert LearningRates(lrs[:2], (1.0, 0.5), True).suggestion is None


def test_losses_are_smoothed_without_the_bias_of_the_beginning():
    assert list(smooth([3.0, 3.0, 3.0])) == pytest.approx([3.0, 3.0, 3.0])
    assert list(smooth([1.0, 2.0]))[1] == pytest.approx((0.98 * 0.02 + 2 * 0.02) / (1 - 0.98**2))


def test_a_plot_without_matplotlib_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"find_lr\(...\).plot\(\) needs matplotlib: pip install"):
        LearningRates((1.0,), (1.0,), False).plot()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_lr": 0}, r"find_lr\(min_lr=0\): it must be a positive learning rate"),
        ({"max_lr": "a"}, r"find_lr\(max_lr='a'\): it must be a positive learning rate"),
        ({"min_lr": 1, "max_lr": 1}, r"find_lr\(min_lr=1, max_lr=1\): min_lr must be smaller"),
        ({"steps": 9}, r"find_lr\(steps=9\): it must be a number of optimizer steps, at least 10"),
        ({"steps": True}, r"find_lr\(steps=True\): it must be a number of optimizer steps"),
    ],
)
def test_options_are_checked(options, message):
    with session() as s, pytest.raises(UsageError, match=message):
        model, optimizer, loader = make()
        s.find_lr(step_of(model, optimizer), optimizer, loader, **options)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            5,
            r"find_lr\(5\): pass a function of a batch that makes a forward, a backward and a step",
        ),
        (lambda batch: None, "find_lr: the function returned NoneType: let it return the loss"),
        (lambda batch: math.nan, "find_lr: the first loss, at lr=1e-07, is nan: choose a smaller"),
        (lambda batch: 1.0, "find_lr: the function made no step of the optimizer: let it do what"),
    ],
)
def test_functions_that_are_no_step(function, message):
    with session() as s, pytest.raises(UsageError, match=message):
        _, optimizer, loader = make()
        s.find_lr(function, optimizer, loader)


def test_outside_of_its_session_it_is_refused():
    s = session()
    model, optimizer, loader = make()
    with pytest.raises(UsageError, match=r"s.find_lr was called outside its session"):
        s.find_lr(step_of(model, optimizer), optimizer, loader)


def test_other_things_than_an_optimizer_and_a_loader():
    with session() as s, pytest.raises(UsageError, match=r"find_lr\(function, list, DataLoader\)"):
        s.find_lr(print, [], make()[2])


def test_a_loader_without_batches():
    with session() as s, pytest.raises(UsageError, match="find_lr: pass 0 over the loader gave no"):
        model, optimizer, _ = make()
        s.find_lr(step_of(model, optimizer), optimizer, DataLoader([]))


def test_an_open_window_is_refused():
    pytest.importorskip("torchbus_accumulate")
    with session(accumulate_grad_batches=2) as s:
        model, optimizer, loader = make()
        step = step_of(model, optimizer)
        step(next(iter(loader)))
        with pytest.raises(UsageError, match="find_lr in an open window of gradient accumulation"):
            s.find_lr(step, optimizer, loader)
