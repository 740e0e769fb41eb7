"""What the seams replace behaves as torch's own does: arguments, copies, pickles, nested calls, and
what others have replaced.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import io
import os
import pathlib
import pickle
import shutil
import typing
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.patches.patching import replace

from torchbus_rank0 import whole_files
from torchbus_testing.state import assert_torch_unchanged, torch_state


def make(cls):
    return cls([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def listener(*events):
    return SimpleNamespace(**{event: hookimpl(lambda: None) for event in events})


ALL = (
    "save_file",
    "before_backward",
    "before_zero_grad",
    "step_called",
    "mode_changed",
    "skip_scheduler",
    "scheduler_metric",
    "loader_start",
)


def test_what_is_replaced_can_be_pickled_copied_and_inspected():
    functions = {
        "save": torch.save,
        "backward": torch.autograd.backward,
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "train": torch.nn.Module.train,
        "step": torch.optim.SGD.step,
        "scheduler": torch.optim.lr_scheduler.LRScheduler.step,
        "iter": DataLoader.__iter__,
    }
    signatures = {name: inspect.signature(function) for name, function in functions.items()}
    make(torch.optim.SGD)
    with session(listener(*ALL), strategy=None) as s:
        for owner, name in (
            (os, "remove"),
            (os, "mkdir"),
            (builtins, "open"),
            (io, "open"),
            (shutil, "rmtree"),
        ):
            s._context.replace(
                owner, name, lambda original: lambda *given, **named: original(*given, **named)
            )
        now = [
            torch.save,
            torch.autograd.backward,
            torch.optim.Optimizer.zero_grad,
            torch.nn.Module.train,
            torch.optim.SGD.step,
            torch.optim.lr_scheduler.LRScheduler.step,
            DataLoader.__iter__,
        ]
        for function in [*now, os.remove, os.mkdir, open, io.open, shutil.rmtree]:
            assert (
                pickle.loads(pickle.dumps(function)) is function
                and copy.deepcopy(function) is function
            )
        assert [inspect.signature(function) for function in now] == list(signatures.values())
        assert all(
            function is not before for function, before in zip(now, functions.values(), strict=True)
        )
        assert typing.get_type_hints(os.remove) == {}


def test_an_iterator_of_a_loader_is_one_of_torchs():
    loader = DataLoader(list(range(4)))
    with session(listener(*ALL), strategy=None):
        iterator = iter(loader)
        assert isinstance(iterator, _BaseDataLoaderIter) and isinstance(
            iterator, _SingleProcessDataLoaderIter
        )
        for refused in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotImplementedError, match="cannot be pickled"):
                refused(iterator)
        assert [int(batch) for batch in iterator] == [0, 1, 2, 3]


def test_an_inherited_attribute_is_replaced_for_that_class_alone():
    class Plugin:
        @hookimpl
        def session_start(self, session):
            session.replace(
                torch.optim.LBFGS,
                "zero_grad",
                lambda original: lambda self: called.append(original),
            )

    called = []
    before = torch_state()
    with session(Plugin(), strategy=None):
        make(torch.optim.LBFGS).zero_grad()
        make(torch.optim.SGD).zero_grad()
    assert called == [torch.optim.Optimizer.zero_grad] and "zero_grad" not in vars(
        torch.optim.LBFGS
    )
    assert_torch_unchanged(before)


def test_what_was_there_before_the_session_is_called_in_its_order(monkeypatch):
    order = []

    def around(owner, name, word):
        original = getattr(owner, name)

        def call(*given, **named):
            order.append(word)
            return original(*given, **named)

        monkeypatch.setattr(owner, name, call)

    class Listener:
        @hookimpl
        def before_backward(self):
            order.append("session")

    for word in ("first", "second"):
        around(torch.autograd, "backward", word)
    with session(Listener(), strategy=None):
        torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()
    assert order == ["session", "second", "first"]


def test_what_is_put_over_a_seam_hears_alone_once_the_seam_is_gone():
    heard = []

    class Listener:
        @hookimpl
        def before_backward(self):
            heard.append("session")

        @hookimpl
        def save_file(self):
            heard.append("file")

    loss = lambda: torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum()  # noqa: E731
    backward, save = torch.autograd.backward, torch.save
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(Listener(), strategy=None) as s:
            ours, our_save = torch.autograd.backward, torch.save
            torch.autograd.backward = lambda *given, **named: (
                heard.append("other"),
                ours(*given, **named),
            )[1]
            torch.save = lambda *given: our_save(*given)
            s.add_plugin(listener("after_backward"), "late")  # the seam stays below
            loss().backward()
            assert heard == ["other", "session"]
        heard.clear()
        loss().backward()
        torch.save({}, os.devnull)
    torch.autograd.backward, torch.save = backward, save
    assert heard == ["other"] and any(
        "was replaced inside the session" in str(warning.message) for warning in caught
    )


def test_a_builtin_in_a_class_is_not_bound():
    """As in pathlib's accessor of Python 3.10."""

    class Accessor:
        mkdir = os.mkdir

    heard = []
    undo = replace(Accessor, "mkdir", lambda original: lambda path, mode=0o777: heard.append(path))
    Accessor().mkdir("folder", 0o700)
    undo()
    assert heard == ["folder"] and vars(Accessor)["mkdir"] is os.mkdir


def test_pathlib_is_heard_where_it_keeps_functions_of_its_own(monkeypatch):
    class Accessor:
        mkdir, open = os.mkdir, io.open

    monkeypatch.setattr(whole_files, "PATHLIBS", whole_files.PATHLIBS or Accessor)
    heard = []
    with session(strategy=None) as s:
        made = whole_files.everywhere(
            os, "mkdir", lambda original: lambda path, *given: heard.append(os.fspath(path))
        )
        s._context.seams.replace(made, s._context.on_close)
        os.mkdir("one")
        whole_files.PATHLIBS().mkdir("two")
        pathlib.Path("three").mkdir()
    assert heard == ["one", "two", "three"]
