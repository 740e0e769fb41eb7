"""What listeners return, clear and hear, event by event."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.patches.loaders import LoaderPass

from torchbus_testing.recorder import Recorder


def test_a_loader_left_by_break_has_no_end():
    recorder = Recorder("loader_start", "batch_ready", "loader_end")
    loader = DataLoader(torch.arange(4))
    with session(recorder, strategy=None):
        for _ in loader:
            break
        assert recorder.names == ["loader_start", "batch_ready"]


def test_len_of_a_loader_can_be_answered():
    class Half:
        @hookimpl
        def loader_length(self, loader):
            return len(loader.dataset) // 2

    loader = DataLoader(torch.arange(4))
    with session(Half(), strategy=None):
        assert len(loader) == 2
    assert len(loader) == 4


def test_returned_values_replace():
    class Doubler:
        @hookimpl
        def batch_ready(self, batch):
            return batch * 2

        @hookimpl
        def loader_start(self):
            return LoaderPass(batch_sampler=[[3], [1]])

        @hookimpl
        def scheduler_metric(self, metric):
            return metric / 2

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loader = DataLoader(torch.arange(4))
    with session(Doubler(), strategy=None):
        assert [batch.item() for batch in loader] == [6, 2]
        scheduler.step(5.0)
    assert scheduler.best == 2.5
    assert [batch.item() for batch in loader] == [0, 1, 2, 3]


def test_events_at_entry_name_what_the_caller_has():
    heard = []

    class Listener:
        @hookimpl
        def model_found(self, model):
            heard.append(model)

        @hookimpl
        def parameters_added(self, optimizer, parameters):
            heard.append((optimizer, len(parameters)))

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(Listener(), strategy=None):
        assert heard == [model, (optimizer, 2)]
        model(torch.ones(1, 2))
        new = torch.zeros(2, requires_grad=True)
        optimizer.add_param_group({"params": [new]})
    assert [entry for entry in heard if isinstance(entry, tuple)] == [
        (optimizer, 2),
        (optimizer, 1),
    ]


def test_a_backward_that_raises_is_told():
    recorder = Recorder("before_backward", "backward_failed", "after_backward")
    with session(recorder, strategy=None):
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(()).backward()
        torch.ones((), requires_grad=True).backward()
    assert recorder.names == [
        "before_backward",
        "backward_failed",
        "before_backward",
        "after_backward",
    ]


def test_gradients_that_a_listener_has_cleared_are_not_looked_for():
    class Keeper:
        @hookimpl
        def before_zero_grad(self, optimizer):
            return optimizer is kept

    kept, other = (torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(2))
    with session(Keeper(), strategy=None):
        for optimizer in (kept, other):
            optimizer.param_groups[0]["params"][0].sum().backward()
            optimizer.zero_grad()
    assert [optimizer.param_groups[0]["params"][0].grad is None for optimizer in (kept, other)] == [
        False,
        True,
    ]


def test_session_end_hears_the_error():
    heard = []

    class Listener:
        @hookimpl
        def session_end(self, error):
            heard.append(error)

    error = ValueError("boom")
    with pytest.raises(ValueError, match="boom"), session(Listener(), strategy=None):
        raise error
    assert heard == [error]
