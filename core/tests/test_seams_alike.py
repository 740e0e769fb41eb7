"""What the seams replace behaves as torch's own does: arguments, copies, pickles, nested calls, and what others have replaced."""

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
from torchbus import hookimpl, session
from torchbus._files import paths
from torchbus._seams.optimizers.skipping import Answer
from torchbus._seams.patch import replace
from torchbus.testing import assert_torch_unchanged, torch_state


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
    def after_closure(self, optimizer):
        self.heard.append("closure")

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
        assert set(steps.heard) == {"called", "before", "after"} and len(steps.heard) == 9
        first = make(LossFirst)
        assert first.step(loss, model=model) == (loss, None, model)
        assert first.step(loss, lambda *given, **named: (given, named)) == (loss, ((True,), {"again": 2}), None)
        assert steps.heard[-4:] == ["called with a closure", "before with a closure", "closure", "after"]


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
        assert steps.heard == ["called", "before", "after"]


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


def listener(*events):
    return SimpleNamespace(**{event: hookimpl(lambda: None) for event in events})


ALL = ("save_file", "before_backward", "before_zero_grad", "step_called", "mode_changed", "skip_scheduler", "scheduler_metric", "loader_start")


def test_what_is_replaced_can_be_pickled_copied_and_inspected():
    functions = {
        "save": torch.save, "backward": torch.autograd.backward, "zero_grad": torch.optim.Optimizer.zero_grad, "train": torch.nn.Module.train,
        "step": torch.optim.SGD.step, "scheduler": torch.optim.lr_scheduler.LRScheduler.step, "iter": DataLoader.__iter__,
    }  # fmt: skip
    signatures = {name: inspect.signature(function) for name, function in functions.items()}
    make(torch.optim.SGD)
    with session(listener(*ALL), strategy=None) as s:
        for owner, name in ((os, "remove"), (os, "mkdir"), (builtins, "open"), (io, "open"), (shutil, "rmtree")):
            s._context.replace(owner, name, lambda original: lambda *given, **named: original(*given, **named))
        now = [
            torch.save, torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.nn.Module.train, torch.optim.SGD.step,
            torch.optim.lr_scheduler.LRScheduler.step, DataLoader.__iter__,
        ]  # fmt: skip
        for function in [*now, os.remove, os.mkdir, open, io.open, shutil.rmtree]:
            assert pickle.loads(pickle.dumps(function)) is function and copy.deepcopy(function) is function
        assert [inspect.signature(function) for function in now] == list(signatures.values())
        assert all(function is not before for function, before in zip(now, functions.values(), strict=True))
        assert typing.get_type_hints(os.remove) == {}


def test_an_iterator_of_a_loader_is_one_of_torchs():
    loader = DataLoader(list(range(4)))
    with session(listener(*ALL), strategy=None):
        iterator = iter(loader)
        assert isinstance(iterator, _BaseDataLoaderIter) and isinstance(iterator, _SingleProcessDataLoaderIter)
        for refused in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotImplementedError, match="cannot be pickled"):
                refused(iterator)
        assert [int(batch) for batch in iterator] == [0, 1, 2, 3]


def test_an_inherited_attribute_is_replaced_for_that_class_alone():
    class Plugin:
        @hookimpl
        def session_start(self, session):
            session.replace(torch.optim.LBFGS, "zero_grad", lambda original: lambda self: called.append(original))

    called = []
    before = torch_state()
    with session(Plugin(), strategy=None):
        make(torch.optim.LBFGS).zero_grad()
        make(torch.optim.SGD).zero_grad()
    assert called == [torch.optim.Optimizer.zero_grad] and "zero_grad" not in vars(torch.optim.LBFGS)
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
            torch.autograd.backward = lambda *given, **named: (heard.append("other"), ours(*given, **named))[1]
            torch.save = lambda *given: our_save(*given)
            s.add_plugin(listener("after_backward"), "late")  # installs the seams anew
            loss().backward()
            assert heard == ["session", "other"]
        heard.clear()
        loss().backward()
        torch.save({}, os.devnull)
    torch.autograd.backward, torch.save = backward, save
    assert heard == ["other"] and any("was replaced inside the session" in str(warning.message) for warning in caught)


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

    monkeypatch.setattr(paths, "PATHLIBS", paths.PATHLIBS or Accessor)
    heard = []
    with session(strategy=None) as s:
        paths.replace_everywhere(s._context, os, "mkdir", lambda original: lambda path, *given: heard.append(os.fspath(path)))
        os.mkdir("one")
        paths.PATHLIBS().mkdir("two")
        pathlib.Path("three").mkdir()
    assert heard == ["one", "two", "three"]


KINDS = ("model", "function", "loss")


@pytest.mark.parametrize("kind", KINDS)
def test_torch_compile_meets_no_hook(kind):
    graphs, called = [], []

    class Listener:
        @hookimpl
        def model_found(self):
            pass

        @hookimpl
        def module_called(self, module):
            called.append(module)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    net, other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.nn.Linear(2, 2)
    with warnings.catch_warnings(), session(Listener(), strategy=None) as s:
        warnings.simplefilter("error")
        compiled = {"model": net, "function": lambda x: net(x), "loss": lambda x: net(x).sum()}[kind]
        compiled = torch.compile(compiled, backend=backend)
        for _ in range(3):
            compiled(torch.ones(1, 2))
            other(torch.ones(1, 2))
        s._context.seams.retire("model_found")
        s._context.seams.retire("module_called")
        compiled(torch.ones(1, 2))
    assert len(graphs) == 1
    expected = {"model": [compiled, other] * 3}.get(kind, [])  # where something else is compiled, models are known by their optimizers
    assert called == expected


def test_a_warning_points_at_the_users_line_and_not_into_a_library():
    from tqdm import tqdm

    names = {"__name__": "torchbus_demo"}
    exec("from torchbus._session.notices import warn\ndef batch_ready(): warn('here')", names)
    plugin = SimpleNamespace(batch_ready=hookimpl(names["batch_ready"]))
    with session(plugin, strategy=None), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        list(tqdm(DataLoader([1]), disable=True))
        list(map(str, tqdm(DataLoader([1]))))
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line), (__file__, line + 1)]


def test_replacements_of_ours_are_undone_in_any_order() -> None:
    original = torch.compile
    undo_first, undo_second = (replace(torch, "compile", lambda below: lambda *args, **kwargs: below(*args, **kwargs)) for _ in range(2))
    undo_first()
    assert torch.compile is not original
    undo_second()
    assert torch.compile is original
