"""What a script holds of a session falls silent with it, and what it had set up stays."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import MutableMapping

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import hookimpl, session
from torchbus.tree import map_tensors


class Notes:
    """Notes the events that it gets."""

    def __init__(self):
        self.events = []

    @hookimpl
    def batch_ready(self):
        self.events.append("batch_ready")

    @hookimpl
    def loader_end(self):
        self.events.append("loader_end")

    @hookimpl
    def before_zero_grad(self):
        self.events.append("before_zero_grad")

    @hookimpl
    def before_backward(self):
        self.events.append("before_backward")

    @hookimpl
    def skip_scheduler(self):
        self.events.append("skip_scheduler")


def test_functions_and_iterators_of_the_block_emit_nothing_after_it():
    notes, leaf = Notes(), torch.ones((), requires_grad=True)
    with session(notes, strategy=None):
        optimizer = torch.optim.SGD([leaf], lr=0.1)
        zero_grad, backward = optimizer.zero_grad, torch.autograd.backward
        iterator = iter(DataLoader([1, 2]))
        next(iterator)
    assert notes.events == ["batch_ready"]
    zero_grad()
    backward(leaf * 2)
    assert next(iterator).item() == 2
    assert notes.events == ["batch_ready"]


def test_a_pass_ends_once():
    notes = Notes()
    with session(notes, strategy=None):
        iterator = iter(DataLoader([1]))
        assert [next(iterator, None) for _ in range(3)][1:] == [None, None]
    assert notes.events == ["batch_ready", "loader_end"]


def test_a_skip_counts_a_batch_that_was_read_ahead():
    class Order:
        def __iter__(self):
            return iter([[0], [1], [2], [3]])

    with session(Notes(), strategy=None):
        iterator = iter(DataLoader([0, 1, 2, 3], batch_sampler=Order()))
        iterator.find_last()
        assert next(iterator).item() == 0
        iterator.skip(1)
        assert next(iterator).item() == 2
        iterator.skip(1)
        assert iterator.num_yielded == 4 and next(iterator, None) is None


def test_a_scheduler_that_calls_its_parent_steps_once():
    class Warm(torch.optim.lr_scheduler.LambdaLR):
        def step(self, *args):
            super().step(*args)

    notes = Notes()
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    scheduler = Warm(optimizer, lambda epoch: 1.0)
    with session(notes, strategy=None):
        optimizer.step()
        scheduler.step()
        scheduler.step()
    assert notes.events == ["skip_scheduler"] * 2


def test_factors_of_several_losses_get_no_gradient():
    one, two = (torch.ones((), requires_grad=True) for _ in range(2))
    factor = torch.tensor(2.0, requires_grad=True)
    with session(Notes(), strategy=None):
        torch.autograd.backward([one * 3, two * 3], [factor, torch.tensor(1.0)])
    assert (one.grad, two.grad, factor.grad) == (6, 3, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_leaves_signals_blocked_that_the_script_has_blocked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        with session(strategy=None), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads
            if not (child := os.fork()):
                os._exit(signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, []))
            assert os.waitpid(child, 0)[1] == 0
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGHUP}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Bag(MutableMapping):
    """Holds its items in a dict."""

    def __init__(self, items):
        self._store = dict(items)

    def __getitem__(self, key):
        return self._store[key]

    def __setitem__(self, key, value):
        self._store[key] = value

    def __delitem__(self, key):
        del self._store[key]

    def __iter__(self):
        return iter(self._store)

    def __len__(self):
        return len(self._store)


def test_a_mapping_of_the_script_keeps_its_items():
    bag = Bag({"x": torch.arange(4)})
    half = map_tensors(bag, lambda tensor: tensor[:2])
    assert type(half) is Bag and len(half["x"]) == 2 and len(bag["x"]) == 4
