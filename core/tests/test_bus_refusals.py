"""What a bus refuses, and in which words."""

from __future__ import annotations

from types import SimpleNamespace

import pluggy
import pytest
from torchbus import events, session
from torchbus.bus.base import hookimpl
from torchbus.bus.registry import Bus
from torchbus.errors import PluginConflict, UsageError


@pytest.fixture
def bus() -> Bus:
    return Bus(events)


def test_a_class_is_refused(bus):
    class Plugin:
        pass

    with pytest.raises(UsageError, match=r"plugin Plugin is a class: pass an object, Plugin\(\)"):
        bus.register(Plugin)


def test_an_event_nobody_declares_is_refused_with_the_nearest_names():
    class Misspelled:
        @hookimpl
        def after_optimiser_step(self):
            pass

    with pytest.raises(UsageError) as error:
        session(Misspelled(), strategy=None)
    message = str(error.value)
    assert message.startswith(
        "plugin Misspelled listens to 'after_optimiser_step', which is not an event; did you mean after_optimizer_step"
    )


def test_an_event_like_no_other_is_refused_with_all_names(bus):
    bus.register(SimpleNamespace(xyzzy=hookimpl(lambda: None)), "p")
    with pytest.raises(
        UsageError,
        match="plugin p listens to 'xyzzy', which is not an event; there are: launch, session_start, ",
    ):
        bus.check_pending()


def test_a_wrong_argument_is_refused():
    class Wrong:
        @hookimpl
        def before_backward(self, calls):
            pass

    with pytest.raises(UsageError) as error:
        session(Wrong(), strategy=None)
    words = "plugin Wrong: before_backward has no argument 'calls'; it has call"
    assert str(error.value) == words
    assert isinstance(error.value.__cause__, pluggy.PluginValidationError)


def test_a_refused_plugin_is_not_registered(bus):
    plugin = SimpleNamespace(before_backward=hookimpl(lambda calls: None))
    with pytest.raises(UsageError):
        bus.register(plugin, "p")
    assert bus.plugins() == [] and not bus.has_listeners("before_backward")


def test_one_plugin_twice_is_refused(bus):
    plugin = SimpleNamespace()
    bus.register(plugin, "p")
    with pytest.raises(PluginConflict, match="plugin p is active twice; pass it once"):
        bus.register(plugin, "p")


def test_two_plugins_of_one_class_are_refused():
    class Plugin:
        @hookimpl
        def after_backward(self):
            pass

    with pytest.raises(PluginConflict, match="plugin Plugin is active twice; pass it once"):
        session(Plugin(), Plugin(), strategy=None)


def test_two_owners_of_one_thing_are_refused():
    with pytest.raises(
        PluginConflict,
        match="first and second both own the order of the data: pass only one of them",
    ):
        bus = Bus(events)
        bus.register(SimpleNamespace(owns=("order of the data",)), "first")
        bus.register(SimpleNamespace(owns=("x", "order of the data")), "second")


def test_two_strategies_are_refused():
    class Mine:
        owns = ("strategy",)

    class Yours(Mine):
        pass

    with pytest.raises(
        PluginConflict, match="Mine and Yours both own the strategy: pass only one of them"
    ):
        session(Mine(), strategy=Yours())
