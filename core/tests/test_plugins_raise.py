"""Plugins that raise: at import, when they are made, at entry, in an event and at the end."""

from __future__ import annotations

import traceback

import pytest
import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import PluginError, UsageError

from torchbus_testing.state import assert_torch_unchanged, torch_state


class Opens:
    """Notes when what it has opened is closed."""

    def __init__(self):
        self.closed = []

    @hookimpl
    def session_start(self, session):
        session.on_close.callback(self.closed.append, True)


class BadEnd:
    @hookimpl
    def session_end(self):
        raise RuntimeError("no disk")


def assert_told(error: BaseException, plugin: str, what: str) -> None:
    """The error, as Python shows it, names the plugin and what went wrong, in one of its last
    lines.
    """
    text = "".join(traceback.format_exception(error))
    assert any(f"plugin {plugin}" in line for line in text.splitlines()) and what in text, text


def test_one_that_raises_at_import(install):
    install("bad-plugin", "raise RuntimeError('out of order')", plugin={"bad": "Bad"})
    with pytest.raises(PluginError) as error:
        session("bad", strategy=None)
    assert (
        str(error.value)
        == "plugin bad (bad-plugin 1.2) could not be imported: RuntimeError('out of order')"
    )
    assert isinstance(error.value.__cause__, RuntimeError)


def test_one_whose_class_is_missing(install):
    install("bad-plugin", "", plugin={"bad": "Bad"})
    with pytest.raises(
        PluginError, match=r"plugin bad \(bad-plugin 1\.2\) could not be imported: AttributeError\("
    ):
        session("bad", strategy=None)


def test_one_that_raises_when_it_is_created(install):
    source = """
        class Bad:
            def __init__(self):
                raise KeyError("key")
    """
    install("bad-plugin", source, plugin={"bad": "Bad"})
    with pytest.raises(PluginError) as error:
        session("bad", strategy=None)
    assert str(error.value) == "plugin bad (bad-plugin 1.2) could not be created: KeyError('key')"


def test_one_that_refuses_its_option_says_so_itself(install):
    source = """
        from torchbus.bus.options import expect

        class Counter:
            def __init__(self, *, by=1):
                expect("by", by, int, "a number of steps")
    """
    install("steps-counter", source, plugin={"counter": "Counter"}, option={"by": "Counter"})
    with pytest.raises(UsageError, match="^by='x' is a str: it must be a number of steps$"):
        session(strategy=None, by="x")


@pytest.mark.parametrize("attribute", ["declares_events", "verbs"])
def test_one_that_raises_at_registration(attribute):
    class Bad:
        def fail(self):
            raise RuntimeError("no events")

    setattr(Bad, attribute, property(Bad.fail))
    with pytest.raises(Exception) as error:
        session(Bad(), strategy=None)
    assert_told(error.value, "Bad", "no events")


@pytest.mark.parametrize("event", ["launch", "session_start", "parameters_added"])
def test_one_that_raises_at_entry_leaves_torch_as_it_was(event):
    class Bad:
        def fail(self):
            raise RuntimeError("no disk")

    setattr(Bad, event, hookimpl(lambda self: self.fail()))
    opens, before = Opens(), torch_state()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(Exception) as error, session(Bad(), opens, strategy=None):
        raise AssertionError("the block must not run")
    assert_told(error.value, "Bad", "no disk")
    assert_torch_unchanged(before)
    assert opens.closed or event == "launch"
    assert optimizer.param_groups


def test_one_that_raises_at_the_end_keeps_nobody_from_closing():
    opens, before = Opens(), torch_state()
    with pytest.raises(Exception) as error, session(BadEnd(), opens, strategy=None):
        pass
    assert_told(error.value, "BadEnd", "no disk")
    assert opens.closed == [True]
    assert_torch_unchanged(before)


def test_the_error_of_the_loop_is_not_lost_behind_that_of_a_plugin():
    with pytest.raises(Exception) as error, session(BadEnd(), strategy=None):
        raise ValueError("boom")
    assert "ValueError: boom" in "".join(traceback.format_exception(error.value))


def test_one_that_raises_at_the_end_keeps_no_other_plugin_from_its_end():
    ended = []

    class Ends:
        @hookimpl
        def session_end(self, error):
            ended.append(error)

    first, last = Ends(), Ends()
    ends = pytest.raises(PluginError, match="BadEnd failed in session_end")
    with ends, session(first, strategy=None) as s:
        s.add_plugin(BadEnd())
        s.add_plugin(last, "last")
    assert ended == [None, None]


@pytest.mark.parametrize(
    "event", ["batch_ready", "before_backward", "after_backward", "before_optimizer_step"]
)
def test_one_that_raises_in_a_hot_event_is_in_the_traceback(event):
    """Its own exception passes (wrapping costs in every step): the file of the plugin is in the
    traceback.
    """

    class Bad:
        pass

    def fail(self):
        raise RuntimeError("no disk")

    setattr(Bad, event, hookimpl(fail))
    before = torch_state()
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with pytest.raises(RuntimeError, match="no disk") as error, session(Bad(), strategy=None):
        for _ in torch.utils.data.DataLoader(torch.arange(1)):
            parameter.sum().backward()
            optimizer.step()
    assert any(entry.name == "fail" for entry in error.traceback)
    assert_torch_unchanged(before)
