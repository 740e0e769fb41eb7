"""Verbs of plugins that nobody has asked for: they become active as any other plugin does, and when
they are used.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import PluginError, PluginNotInstalled, UsageError

SCRIPTS = Path(__file__).parent / "scripts"

SOURCE = (SCRIPTS / "some_verbs.py").read_text()


@pytest.fixture
def heard(install):
    names = {
        "double": "Verbs",
        "number": "Verbs",
        "refused": "Verbs",
        "misspelled": "Misspelled",
        "wrong": "Misspelled",
        "fails": "Fails",
    }
    install("some-verbs", SOURCE, verb=names)
    import some_verbs  # type: ignore[import-not-found]

    return some_verbs.heard


def active(s) -> list[str]:
    return [name for name, _ in s._context.bus.plugins()]


def test_a_method_activates_its_plugin_when_it_is_called(heard):
    with session(strategy=None) as s:
        assert hasattr(s, "double") and getattr(s, "double", None) is not None
        double = s.double
        assert (active(s), heard, s._context.seams.places()) == ([], [], [])
        assert str(inspect.signature(double)) == "(value: int, *, times: int = 1) -> int"
        assert double.__doc__ == "Twice the value."
        assert (double(3), double(3, times=2), s.double(4)) == (6, 12, 8)
        assert (active(s), heard) == (["double"], ["start"])
        torch.ones(1, requires_grad=True).sum().backward()
    assert heard == ["start", "backward"]


def test_a_value_activates_its_plugin_when_it_is_read(heard):
    with session(strategy=None) as s:
        assert s.number == s.number == 42
        assert (active(s), heard) == (["number"], ["start"])


def test_a_listener_of_any_arguments_is_started(heard):
    """As in a session that has it from the beginning."""
    with session(strategy=None) as s:
        s.double(1)
        assert heard == ["start"]
    assert heard == ["start"]


def test_hasattr_never_raises(heard, monkeypatch):
    with session(strategy=None) as s:
        assert (
            not hasattr(s, "refused") and not hasattr(s, "wrong") and not hasattr(s, "no_such_verb")
        )
        with pytest.raises(UsageError, match="^not now$"):
            _ = s.refused
        with pytest.raises(
            AttributeError, match=r"^unknown s\.no_such_verb: known are "
        ) as unknown:
            _ = s.no_such_verb
    for name in ("rank", "device", "reduce", "all_gather_object", "print", "on", "global_step"):
        assert name in str(unknown.value).replace(",", "").split()
    with monkeypatch.context() as patch, session(strategy=None) as s:
        patch.setattr("torchbus.bus.discovery.installed", lambda kind: {})
        assert not hasattr(s, "save")
        with pytest.raises(PluginNotInstalled, match=r"pip install torchbus-checkpoint$") as error:
            _ = s.save
        assert isinstance(error.value, AttributeError)


def test_a_misspelled_event_of_a_verbs_plugin_is_refused(heard):
    words = "^plugin misspelled listens to 'after_bakward', which is not an event; did you mean after_backward"
    with session(strategy=None) as s:
        for _ in range(2):
            with pytest.raises(UsageError, match=words):
                s.misspelled()
        with pytest.raises(UsageError, match="^plugin wrong listens to 'after_bakward'"):
            _ = s.wrong
        assert active(s) == []


def test_one_that_fails_to_start_is_named_and_not_active(heard):
    with session(strategy=None) as s:
        with pytest.raises(
            PluginError, match=r"^plugin fails failed in session_start: RuntimeError\('no disk'\)$"
        ):
            s.fails()
        assert active(s) == []


def test_a_plugin_that_is_added_is_started_once():
    class Late:
        def __init__(self):
            self.starts = []

        @hookimpl
        def session_start(self, session):
            self.starts.append(session.is_inside)

    class Brings:
        def __init__(self, part):
            self.part = part

        @hookimpl
        def session_start(self, session):
            session.add_plugin(self.part, "part")

    early, part, late = Late(), Late(), Late()
    s = session(Brings(part), strategy=None)
    s.add_plugin(early, "early")
    assert early.starts == []
    with s:
        assert (early.starts, part.starts) == ([False], [False])
        s.add_plugin(late, "late")
    assert (early.starts, part.starts, late.starts) == ([False], [False], [True])


@pytest.mark.parametrize("when", ["before", "after"])
def test_outside_the_block_verbs_are_refused(heard, when):
    """What nobody would hear."""
    s = session(strategy=None)
    if when == "after":
        with s:
            s.double(1)
            s.log("loss", 1.0)
    words = "^s.{} was called outside its session: call it inside `with session"
    with pytest.raises(UsageError, match=words.format("log")):
        s.log("loss", 1.0)
    with pytest.raises(UsageError, match=words.format("log_dict")):
        s.log_dict({"loss": 1.0})
    if when == "before":
        with pytest.raises(UsageError, match=words.format("double")):
            s.double(1)
        assert not hasattr(s, "number")


def test_a_listener_that_comes_or_goes_is_heard_by_the_next_log():
    """Also where a plugin registers a part of its own while the loop runs."""

    class Hears:
        def __init__(self):
            self.values = []

        @hookimpl
        def log_metrics(self, metrics):
            self.values += metrics.values()

    class Skips:
        @hookimpl
        def skip_logging(self):
            return True

    hears, skips = Hears(), Skips()
    with session(hears, strategy=None) as s:
        s.log("value", 1.0)
        s._context.bus.register(skips)
        s.log("value", 2.0)
        s._context.bus.unregister(skips)
        s.log("value", 3.0)
    assert hears.values == [1.0, 3.0]
