"""What can't be is refused before anything starts, with the facts and what to do."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchbus import session
from torchbus._bus import discovery
from torchbus.errors import PluginNotInstalled, UsageError
from torchbus.testing import assert_torch_unchanged, empty_environment, run, torch_state, write_script


def message(*args, **kwargs) -> str:
    with pytest.raises(UsageError) as error:
        session(*args, **kwargs)
    return str(error.value)


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(discovery, "installed", lambda kind: {})


def test_unknown_strategy():
    assert message(strategy="dpp") == "unknown strategy 'dpp': did you mean 'dp' or 'ddp' or 'fsdp'?"
    assert message(strategy="Auto") == "unknown strategy 'Auto': did you mean 'auto'?"


def test_unknown_option():
    assert message(devises=2).startswith("unknown option 'devises': did you mean 'devices'")
    assert message(replace_samplers=False).startswith("unknown option 'replace_samplers': did you mean 'replace_sampler'")


def test_unknown_names_that_are_like_none_are_refused_with_all():
    known = message(strategy="xyzzy")
    assert known.startswith("unknown strategy 'xyzzy': known are ") and "ddp" in known
    known = message("xyzzy", strategy=None)
    assert known.startswith("unknown plugin 'xyzzy': known are ") and "sampler" in known
    assert message(logger="xyzzy").startswith("unknown logger 'xyzzy': known are ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": "ddp"}, "strategy 'ddp' needs a plugin that is not installed: pip install torchbus-ddp"),
        ({"devices": 2, "accelerator": "cpu"}, "strategy 'ddp' needs a plugin that is not installed: pip install torchbus-ddp"),
        ({"backend": "gloo"}, "option 'backend' needs a plugin that is not installed: pip install torchbus-ddp"),
        ({"replace_sampler": False}, "option 'replace_sampler' needs a plugin that is not installed: pip install torchbus-sampler"),
        ({"logger": True}, "logger 'local' needs a plugin that is not installed: pip install torchbus-log"),
        ({"logger": ["local"]}, "logger 'local' needs a plugin that is not installed: pip install torchbus-log"),
    ],
)
def test_a_plugin_that_is_not_installed(nothing_installed, arguments, words):
    with pytest.raises(PluginNotInstalled) as error:
        session(**arguments)
    assert str(error.value) == words


def test_a_verb_whose_plugin_is_not_installed(nothing_installed):
    with session(strategy=None) as s, pytest.raises(PluginNotInstalled) as error:
        s.log("loss", 1.0)
    assert str(error.value) == "s.log() needs a plugin that is not installed: pip install torchbus-log"


def test_the_core_alone_is_whole(tmp_path):
    """In an environment that has no plugin at all."""
    source = """
        import torch
        from torchbus import session
        with session() as s:
            torch.ones(1, requires_grad=True).sum().backward()
            print(s.explain())
        for strategy, plugins in (("ddp", ()), (None, ("sampler",))):
            try:
                session(*plugins, strategy=strategy)
            except ValueError as error:
                print(f"{type(error).__name__}: {error}")
    """
    python = empty_environment(tmp_path / "env", "torchbus")
    result = run([python, str(write_script(tmp_path, source))], env={"PYTHONPATH": None}, cwd=tmp_path)
    assert result.ok() and "none: the loop runs as it would by itself" in result.stdout
    assert "PluginNotInstalled: strategy 'ddp' needs a plugin that is not installed: pip install torchbus-ddp" in result.stdout
    assert "PluginNotInstalled: plugin 'sampler' needs a plugin that is not installed: pip install torchbus-sampler" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"capture": 1}, "capture=1 is a int: it must be True or False"),
        ({"verbose": "yes"}, "verbose='yes' is a str: it must be True or False"),
        ({"print_all_ranks": None}, "print_all_ranks=None is a NoneType: it must be True or False"),
        ({"num_nodes": "2"}, "num_nodes='2' is a str: it must be a number of machines"),
        ({"num_nodes": True}, "num_nodes=True is a bool: it must be a number of machines"),
        ({"num_nodes": 0}, "num_nodes=0: there must be at least one"),
        ({"timeout_s": "10"}, "timeout_s='10' is a str: it must be a number of seconds"),
        ({"hang_timeout": None}, "hang_timeout=None is a NoneType: it must be a number of seconds"),
        ({"hang_timeout": 0.0}, "hang_timeout=0.0: it must be positive"),
        ({"accelerator": 1}, "accelerator=1 is a int: it must be 'auto', 'cpu' or 'gpu'"),
        ({"launch": "forks"}, "launch='forks' is unknown: use 'auto' or 'script' or 'fork' or 'spawn'"),
        ({"launch": None}, "launch=None is unknown: use 'auto' or 'script' or 'fork' or 'spawn'"),
    ],
)
def test_wrong_types_and_values(arguments, words):
    assert message(**arguments) == words


def test_a_timeout_must_be_positive():
    assert message(timeout_s=0).startswith("timeout_s=0")
    assert message(timeout_s=-1.0).startswith("timeout_s=-1.0")
    assert message(timeout_s=float("nan")).startswith("timeout_s=nan")


def test_a_strategy_that_is_a_class_is_refused():
    class Strategy:
        owns = ("strategy",)

    assert message(strategy=Strategy) == "plugin Strategy is a class: pass an object, Strategy()"
    assert message(Strategy, strategy=None) == "plugin Strategy is a class: pass an object, Strategy()"


def test_a_strategy_or_logger_that_is_no_plugin_is_refused():
    assert "strategy=2" in message(strategy=2)
    assert "logger=2" in message(logger=2)


def test_nested_sessions():
    before = torch_state()
    with session(strategy=None), pytest.raises(UsageError) as error, session(strategy=None):
        pass
    assert str(error.value) == "a session inside a session: one is active already; end it first, or pass both sets of plugins to one"
    assert_torch_unchanged(before)
    with session(strategy=None):
        pass


def test_a_session_is_for_one_block():
    with session(strategy=None) as s:
        with pytest.raises(UsageError, match="^a session inside a session: "):
            s.start()
        assert s.rank == 0
    with pytest.raises(UsageError) as error, s:
        raise AssertionError("the block must not run")
    assert str(error.value) == "this session was used already: make a new one, session(...), for each block"


class OpensSession(Dataset):
    """A data set as it is found in scripts without ``if __name__ == '__main__'``."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        try:
            with session(strategy=None):
                return "entered"
        except UsageError as error:
            return str(error)


@pytest.mark.parametrize("inside", [False, True])
def test_a_session_in_a_loader_worker(inside):
    loader = DataLoader(OpensSession(), num_workers=1)
    if inside:
        with session(strategy=None):
            words = list(loader)
    else:
        words = list(loader)
    assert words == [["a session in a DataLoader worker: put it (and the loop) under `if __name__ == '__main__':`"]]


def test_adopt_takes_what_a_loop_is_made_of():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader([1])
    with session(strategy=None, capture=False) as s:
        assert s.adopt(model, optimizer, loader) == (model, optimizer, loader)
        assert s.adopt(model) is model
        assert s._context.captures(model) and s._context.captures(loader) and not s._context.captures(torch.nn.Linear(1, 1))
        with pytest.raises(UsageError, match=r"^adopt\(str\): pass modules, optimizers, DataLoaders or tensors$"):
            s.adopt("model")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.all_gather(3), "s.all_gather(3): a int is no tensor; s.all_gather_object takes any object"),
        (lambda s: s.all_gather([torch.ones(1)]), "s.all_gather([tensor([1.])]): a list is no tensor; s.all_gather_object takes any object"),
        (lambda s: s.reduce("x"), "s.reduce('x'): a str is neither a tensor nor a number"),
        (lambda s: s.reduce(None), "s.reduce(None): a NoneType is neither a tensor nor a number"),
        (lambda s: s.reduce({"loss": 1.0} | dict.fromkeys(range(99))), "s.reduce(dict): a dict is neither a tensor nor a number"),
        (lambda s: s.log_dict([1]), "s.log_dict(list): pass a dict from names to values"),
        (lambda s: s.log_dict("loss"), "s.log_dict(str): pass a dict from names to values"),
    ],
)
def test_values_that_verbs_can_not_take(call, words):
    with session(strategy=None) as s, pytest.raises(UsageError) as error:
        call(s)
    assert str(error.value) == words


def test_operations_that_do_not_exist():
    with session(strategy=None) as s:
        assert s.reduce(3.0).item() == 3.0
        with pytest.raises(UsageError, match="^op='median' is unknown: use one of mean, sum, max, min$"):
            s.reduce(3.0, "median")
