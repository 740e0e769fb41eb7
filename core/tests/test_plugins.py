"""Plugins by name, by object and by entry point; those that raise; those that are installed and not
asked for.
"""

from __future__ import annotations

import sys

import pytest
import torch
from torchbus import session
from torchbus.bus import discovery
from torchbus.errors import PluginConflict

COUNTER = """
    from torchbus.bus.base import hookimpl

    class Counter:
        def __init__(self, *, by=1):
            self.steps, self.by = 0, by

        @hookimpl
        def after_optimizer_step(self):
            self.steps += self.by
"""


def steps_counted(s) -> int:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.step()
    return next(
        plugin.steps for _, plugin in s._context.bus.plugins() if type(plugin).__name__ == "Counter"
    )


def test_by_name(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"})
    with session("counter", strategy=None) as s:
        assert steps_counted(s) == 1
        assert [name for name, _ in s._context.bus.plugins()] == ["counter"]


def test_by_object(install, monkeypatch):
    monkeypatch.syspath_prepend(install("steps-counter", COUNTER))
    from steps_counter import Counter  # type: ignore[import-not-found]

    with session(Counter(by=2), strategy=None) as s:
        assert steps_counted(s) == 2


def test_by_option(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"}, option={"by": "Counter"})
    with session(strategy=None, by=3) as s:
        assert steps_counted(s) == 3


def test_a_name_and_its_option_are_one_plugin(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"}, option={"by": "Counter"})
    with session("counter", strategy=None, by=3) as s:
        assert steps_counted(s) == 3
        assert [name for name, _ in s._context.bus.plugins()] == ["counter"]


def test_a_name_that_is_given_twice_is_refused(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"})
    with (
        pytest.raises(PluginConflict, match="^plugin counter is active twice; pass it once$"),
        session("counter", "counter"),
    ):
        pass


def test_by_strategy_and_logger(install):
    install(
        "steps-counter", COUNTER, plugin={"counter": "Counter"}, strategy={"counted": "Counter"}
    )
    with session(strategy="counted") as s:
        assert steps_counted(s) == 1
    install("steps-logger", COUNTER, logger={"steps": "Counter"})
    with session(strategy=None, logger=["steps"]) as s:
        assert steps_counted(s) == 1


def test_an_entry_point_may_name_an_object(install):
    install(
        "steps-counter",
        COUNTER + "\n    counter = Counter(by=4)\n    counter.__call__ = None\n",
        plugin={"counter": "counter"},
    )
    with session("counter", strategy=None) as s:
        assert steps_counted(s) == 4


def test_an_object_and_its_option_are_refused_together(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"}, option={"by": "Counter"})
    from steps_counter import Counter  # type: ignore[import-not-found]

    with pytest.raises(
        PluginConflict,
        match=r"Counter\(\.\.\.\) was passed, and by beside it: pass them to Counter\(\.\.\.\)",
    ):
        session(Counter(), strategy=None, by=3)


def test_a_companion_comes_along_where_it_is_installed(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"})

    class Strategy:
        companions = ("counter", "not-installed")

    with session(strategy=Strategy()) as s:
        assert steps_counted(s) == 1


def test_explain_names_plugin_and_version(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"})
    with session("counter", strategy=None) as s:
        assert "counter 1.2" in s.explain()


def test_installed_is_not_active(install):
    install("steps-counter", COUNTER, plugin={"counter": "Counter"})
    install(
        "bad-plugin",
        "raise RuntimeError('imported')",
        plugin={"bad": "Bad"},
        option={"bad_option": "Bad"},
        strategy={"bad": "Bad"},
    )
    assert {"bad", "counter"} <= set(discovery.installed("plugin"))
    with session("counter", strategy=None) as s:
        assert [name for name, _ in s._context.bus.plugins()] == ["counter"]
    assert "bad_plugin" not in sys.modules
