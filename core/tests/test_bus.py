"""Registration, validation, order, and the flat tuples of hot events."""

from __future__ import annotations

from types import SimpleNamespace

import pluggy
import pytest
import torch
from torchbus import events, hookimpl, hookspec, session
from torchbus.bus import Bus
from torchbus.errors import PluginConflict, PluginError, UsageError


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_hot_listeners_take_any_subset_of_the_arguments_in_any_order(bus):
    heard = []

    class Two:
        @hookimpl
        def batch_ready(self, batch, loader):
            heard.append((loader, batch))

    class One:
        @hookimpl
        def batch_ready(self, order):
            heard.append(order)

    class All:
        @hookimpl
        def batch_ready(self, loader, batch, order):
            heard.append((loader, batch, order))

    class Nothing:
        @hookimpl
        def batch_ready(self):
            heard.append(())

    for plugin in (Two(), One(), All(), Nothing()):
        bus.register(plugin)
    for listener in bus.listeners("batch_ready"):
        listener("loader", "batch", "order")
    assert sorted(map(repr, heard)) == sorted(map(repr, [("loader", "batch"), "order", ("loader", "batch", "order"), ()]))


def test_a_listener_that_takes_all_arguments_is_called_without_a_detour(bus):
    class All:
        @hookimpl
        def after_optimizer_step(self, optimizer):
            pass

    plugin = All()
    bus.register(plugin)
    assert bus.listeners("after_optimizer_step") == (plugin.after_optimizer_step,)


def test_hot_and_cold_events_keep_the_order_of_pluggy(bus):
    def listener(name, **options):
        class Plugin:
            @hookimpl(**options)
            def before_backward(self):
                heard.append(name)

        return Plugin()

    heard: list[str] = []
    bus.register(listener("last", trylast=True), "a")
    bus.register(listener("second"), "b")
    bus.register(listener("first", tryfirst=True), "c")
    for call in bus.listeners("before_backward"):
        call(None)
    assert heard == ["first", "second", "last"]
    bus.hook.before_backward(call=None)
    assert heard == ["first", "second", "last"] * 2


@pytest.mark.parametrize("marks", [{"wrapper": True}, {"hookwrapper": True}])
@pytest.mark.parametrize("event", events.HOT)
def test_a_wrapper_is_refused_on_a_hot_event(event, marks):
    def wrap():
        yield

    wrap.__name__ = event
    plugin = SimpleNamespace(**{event: hookimpl(**marks)(wrap)})
    with pytest.raises(PluginError, match=f"plugin SimpleNamespace: {event} is a hot event and can't be a wrapper"), session(plugin, strategy=None):
        pass


def test_a_wrapper_works_on_a_cold_event():
    heard = []

    class Wrapper:
        @hookimpl(wrapper=True)
        def session_start(self):
            heard.append("before")
            yield
            heard.append("after")

    with session(Wrapper(), strategy=None):
        assert heard == ["before", "after"]


def test_a_plugin_can_come_late_and_be_heard():
    class Late:
        steps = 0

        @hookimpl
        def after_optimizer_step(self):
            self.steps += 1

    late = Late()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with session(strategy=None) as s:
        optimizer.step()
        assert s.seams.places() == []
        s.add_plugin(late)
        assert s.seams.places() == ["Optimizer.step"]
        optimizer.step()
    optimizer.step()
    assert late.steps == 1


def test_a_late_plugin_is_validated_too():
    class Misspelled:
        @hookimpl
        def after_backwards(self):
            pass

    with session(strategy=None) as s, pytest.raises(UsageError, match="plugin Misspelled listens to 'after_backwards', which is no event"):
        s.add_plugin(Misspelled())


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
    assert message.startswith("plugin Misspelled listens to 'after_optimiser_step', which is no event; did you mean after_optimizer_step")


def test_an_event_like_no_other_is_refused_with_all_names(bus):
    bus.register(SimpleNamespace(xyzzy=hookimpl(lambda: None)), "p")
    with pytest.raises(UsageError, match="plugin p listens to 'xyzzy', which is no event; there are: launch, session_start, "):
        bus.check_pending()


def test_a_wrong_argument_is_refused():
    class Wrong:
        @hookimpl
        def before_backward(self, calls):
            pass

    with pytest.raises(UsageError) as error:
        session(Wrong(), strategy=None)
    message = str(error.value)
    assert message.startswith("plugin Wrong: ") and "before_backward" in message and "calls" in message
    assert isinstance(error.value.__cause__, pluggy.PluginValidationError)


def test_a_refused_plugin_is_not_registered(bus):
    plugin = SimpleNamespace(before_backward=hookimpl(lambda calls: None))
    with pytest.raises(UsageError):
        bus.register(plugin, "p")
    assert bus.plugins() == [] and not bus.heard("before_backward")


def test_one_plugin_twice_is_refused(bus):
    plugin = SimpleNamespace()
    bus.register(plugin, "p")
    with pytest.raises(PluginConflict, match="plugin p is active twice; pass it once"):
        bus.register(plugin, "p")


def test_two_plugins_of_one_class_are_refused():
    class Plugin:
        pass

    with pytest.raises(PluginConflict, match="plugin Plugin is active twice; pass it once"):
        session(Plugin(), Plugin(), strategy=None)


def test_two_owners_of_one_thing_are_refused():
    with pytest.raises(PluginConflict, match="first and second both own the order of the data: pass only one of them"):
        bus = Bus()
        bus.register(SimpleNamespace(owns=("order of the data",)), "first")
        bus.register(SimpleNamespace(owns=("x", "order of the data")), "second")


def test_two_strategies_are_refused():
    class Mine:
        owns = ("strategy",)

    class Yours(Mine):
        pass

    with pytest.raises(PluginConflict, match="Mine and Yours both own the strategy: pass only one of them"):
        session(Mine(), strategy=Yours())


def test_a_plugin_declares_events_of_its_own():
    class Events:
        @hookspec(firstresult=True)
        def ripe(self, colour):
            """Whether a fruit is ripe."""

    class Fruit:
        declares_events = Events()

        @hookimpl
        def ripe(self, colour):
            return colour == "red"

    with session(Fruit(), strategy=None) as s:
        assert "ripe" in s.bus.events() and s.bus.hook.ripe(colour="red") is True


def test_what_a_plugin_listens_to(bus):
    class Plugin:
        @hookimpl
        def session_end(self):
            pass

        @hookimpl
        def before_backward(self):
            pass

        def other(self):
            pass

    plugin = Plugin()
    assert bus.register(plugin) == "Plugin"
    assert sorted(bus.events_of(plugin)) == ["before_backward", "session_end"]
    assert bus.heard("session_end") and not bus.heard("session_start")
    bus.unregister(plugin)
    assert not bus.heard("session_end") and bus.plugins() == []
