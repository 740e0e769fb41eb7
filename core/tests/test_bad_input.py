"""What can't be is refused before anything starts, with the facts and what to do."""

from __future__ import annotations

import numpy as np
import pytest
from torchbus import session
from torchbus.bus import discovery
from torchbus.errors import PluginNotInstalled, UsageError

from torchbus_testing.environments import empty_environment
from torchbus_testing.scripts import run, write_script


def message(*args, **kwargs) -> str:
    with pytest.raises(UsageError) as error:
        session(*args, **kwargs)
    return str(error.value)


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(discovery, "installed", lambda kind: {})


def test_unknown_strategy():
    assert message(strategy="dpp") == "unknown strategy 'dpp': did you mean 'dp' or 'ddp'?"
    assert message(strategy="Auto") == "unknown strategy 'Auto': did you mean 'auto'?"
    assert message(strategy="FSDP").startswith("unknown strategy 'FSDP': did you mean 'fsdp'")
    for name, ours in {"DistributedDataParallel": "ddp", "fully_shard": "fsdp"}.items():
        said = message(strategy=name)
        assert said == f"unknown strategy {name!r}: here it is called {ours!r}"


def test_numbers_of_numpy_are_numbers():
    options = {"timeout_s": np.float32(60.0), "hang_timeout": np.float64(9), "verbose": np.False_}
    with session(devices=np.int64(1), accelerator="cpu", **options) as s:
        assert s.world_size == 1


def test_unknown_option():
    assert message(devises=2).startswith("unknown option 'devises': did you mean 'devices'")
    assert message(replace_samplers=False).startswith(
        "unknown option 'replace_samplers': did you mean 'replace_sampler'"
    )


def test_unknown_names_that_are_like_none_are_refused_with_all():
    known = message(strategy="xyzzy")
    assert known.startswith("unknown strategy 'xyzzy': known are ") and "ddp" in known
    known = message("xyzzy", strategy=None)
    assert known.startswith("unknown plugin 'xyzzy': known are ") and "sampler" in known
    assert message(logger="xyzzy").startswith("unknown logger 'xyzzy': known are ")


def test_an_unknown_option_that_is_like_none_names_the_command_that_lists_all():
    assert message(xyzzy=1) == "unknown option 'xyzzy': `torchbus options` lists those that exist"


def test_a_value_that_is_written_as_an_option():
    assert message(fsdp=True) == "unknown option 'fsdp': here it is strategy='fsdp'"
    assert message(wandb=True) == "unknown option 'wandb': here it is logger='wandb'"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"strategy": "ddp"},
            "strategy 'ddp' needs a plugin that is not installed: pip install torchbus-ddp",
        ),
        (
            {"devices": 2, "accelerator": "cpu"},
            "strategy 'ddp' needs a plugin that is not installed: pip install torchbus-ddp",
        ),
        (
            {"backend": "gloo"},
            "option 'backend' needs a plugin that is not installed: pip install torchbus-ddp",
        ),
        (
            {"replace_sampler": False},
            "option 'replace_sampler' needs a plugin that is not installed: pip install torchbus-sampler",
        ),
        (
            {"logger": True},
            "logger 'local' needs a plugin that is not installed: pip install torchbus-log",
        ),
        (
            {"logger": ["local"]},
            "logger 'local' needs a plugin that is not installed: pip install torchbus-log",
        ),
    ],
)
def test_a_plugin_that_is_not_installed(nothing_installed, arguments, words):
    with pytest.raises(PluginNotInstalled) as error:
        session(**arguments)
    assert str(error.value) == words


def test_a_verb_whose_plugin_is_not_installed(nothing_installed):
    with session(strategy=None) as s, pytest.raises(PluginNotInstalled) as error:
        s.log("loss", 1.0)
    assert (
        str(error.value) == "s.log needs a plugin that is not installed: pip install torchbus-log"
    )


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
    result = run(
        [python, str(write_script(tmp_path, source))], env={"PYTHONPATH": None}, cwd=tmp_path
    )
    assert result.ok() and "none: the loop runs as without a session" in result.stdout
    assert (
        "PluginNotInstalled: strategy 'ddp' needs a plugin that is not installed: pip install torchbus-ddp"
        in result.stdout
    )
    assert (
        "PluginNotInstalled: plugin 'sampler' needs a plugin that is not installed: pip install torchbus-sampler"
        in result.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"capture": 1}, "capture=1 is an int: it must be True or False"),
        ({"verbose": "yes"}, "verbose='yes' is a str: it must be True or False"),
        ({"print_all_ranks": None}, "print_all_ranks=None is a NoneType: it must be True or False"),
        ({"num_nodes": "2"}, "num_nodes='2' is a str: it must be a number of machines"),
        ({"num_nodes": True}, "num_nodes=True is a bool: it must be a number of machines"),
        ({"num_nodes": 0}, "num_nodes=0: there must be at least one"),
        ({"timeout_s": "10"}, "timeout_s='10' is a str: it must be a number of seconds"),
        ({"seed": -1}, "seed=-1: it must be from 0 to 4294967295 (as in NumPy)"),
        (
            {"seed": 2**32},
            "seed=4294967296: it must be from 0 to 4294967295 (as in NumPy)",
        ),
        ({"seed": True}, "seed=True is a bool: it must be a whole number from 0 to 4294967295"),
        ({"seed": "42"}, "seed='42' is a str: it must be a whole number from 0 to 4294967295"),
        ({"hang_timeout": None}, "hang_timeout=None is a NoneType: it must be a number of seconds"),
        ({"hang_timeout": 0.0}, "hang_timeout=0.0: it must be positive"),
        (
            {"timeout_s": float("inf")},
            "timeout_s=inf: torch.distributed waits for at most 1e+09 seconds",
        ),
        (
            {"accelerator": ""},
            "accelerator='' is empty: it must be 'auto', 'cpu', 'gpu' or a device type",
        ),
        (
            {"accelerator": 1},
            "accelerator=1 is an int: it must be 'auto', 'cpu', 'gpu' or a device type",
        ),
        (
            {"launch": "forks"},
            "launch='forks' is unknown: use 'auto' or 'script' or 'fork' or 'spawn'",
        ),
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
    assert (
        message(Strategy, strategy=None) == "plugin Strategy is a class: pass an object, Strategy()"
    )


def test_a_strategy_or_logger_that_is_no_plugin_is_refused():
    assert "strategy=2" in message(strategy=2)
    assert "logger=2" in message(logger=2)
