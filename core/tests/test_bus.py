"""Registration, validation, order, and the flat tuples of hot events."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pluggy
import pytest
import torch
from torchbus import events, session
from torchbus.bus.base import hookimpl, hookspec
from torchbus.bus.registry import Bus
from torchbus.errors import PluginError, UsageError


@pytest.fixture
def bus() -> Bus:
    return Bus(events)


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
    for listener in bus.listeners("batch_ready").now:
        listener("loader", "batch", "order")
    assert sorted(map(repr, heard)) == sorted(
        map(repr, [("loader", "batch"), "order", ("loader", "batch", "order"), ()])
    )


class OnlyForTheLoop:
    @property
    def verb(self):
        raise UsageError("not now")

    @hookimpl
    def session_start(self):
        pass


def test_no_property_is_read_at_registration(bus, monkeypatch):
    """pluggy did so before 1.7."""
    own = pluggy.PluginManager.parse_hookimpl_opts

    def of_1_6(self, plugin, name):
        return own(self, plugin, name) if inspect.isroutine(getattr(plugin, name)) else None

    monkeypatch.setattr(pluggy.PluginManager, "parse_hookimpl_opts", of_1_6)
    bus.register(OnlyForTheLoop())
    assert len(bus.hook.session_start.get_hookimpls()) == 1


def test_a_listener_that_takes_all_arguments_is_called_without_a_detour(bus):
    class All:
        @hookimpl
        def after_optimizer_step(self, optimizer):
            pass

    plugin = All()
    bus.register(plugin)
    assert bus.listeners("after_optimizer_step").now == (plugin.after_optimizer_step,)


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
    for call in bus.listeners("before_backward").now:
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
    with (
        pytest.raises(
            PluginError,
            match=f"plugin SimpleNamespace: {event} is sent to each plugin separately, so use",
        ),
        session(plugin, strategy=None),
    ):
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
        assert s._context.seams.places() == []
        s.add_plugin(late)
        assert s._context.seams.places() == ["Optimizer.step"]
        optimizer.step()
    optimizer.step()
    assert late.steps == 1


def test_a_late_plugin_is_validated_too():
    class Misspelled:
        @hookimpl
        def after_backwards(self):
            pass

    with (
        session(strategy=None) as s,
        pytest.raises(
            UsageError,
            match="plugin Misspelled listens to 'after_backwards', which is not an event",
        ),
    ):
        s.add_plugin(Misspelled())


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
        assert "ripe" in s._context.bus.events() and s._context.bus.hook.ripe(colour="red") is True


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
    assert bus.order("before_backward") == bus.order("session_end") == ["Plugin"]
    assert bus.has_listeners("session_end") and not bus.has_listeners("session_start")
    bus.unregister(plugin)
    assert not bus.has_listeners("session_end") and bus.plugins() == []


class DeclaresHot:
    class declares_events:
        HOT = ("late",)

        @hookspec
        def late(value):
            pass


def test_listeners_of_an_event_that_becomes_hot_later_stay_as_they_are(bus):
    """Decorators and filters count, whichever plugin comes first."""
    heard = []

    class Listens:
        @hookimpl
        @torch.no_grad()
        def late(self, value):
            heard.append((value, torch.is_grad_enabled()))

    class Filtered:
        @hookimpl(every=2)
        def late(self, value):
            heard.append(("filtered", value))

    for plugin in (Listens(), Filtered(), DeclaresHot()):
        bus.register(plugin)
    for value in (1, 2):
        for listener in bus.listeners("late").now:
            listener(value)
    assert heard == [(1, False), ("filtered", 2), (2, False)]


@pytest.mark.parametrize("declared_first", [False, True])
def test_a_hot_event_has_no_wrapper(declared_first):
    class Wraps:
        @hookimpl(wrapper=True)
        def late(self, value):
            return (yield)

    plugins = [Wraps(), DeclaresHot()]
    with pytest.raises(
        PluginError,
        match=r"^plugin Wraps: late is sent to each plugin separately, so use @hookimpl",
    ):
        session(*(plugins[::-1] if declared_first else plugins), strategy=None)


def test_plugins_are_muted_inside_of_others_that_are(bus):
    class Listens:
        @hookimpl
        def before_backward(self):
            pass

    outer, inner = Listens(), Listens()
    bus.register(outer, "outer")
    bus.register(inner, "inner")
    with bus.muted([outer]):
        with bus.muted([inner]):
            assert bus.order("before_backward") == []
        assert bus.order("before_backward") == ["inner"]
    assert sorted(bus.order("before_backward")) == ["inner", "outer"]


def test_the_end_has_no_wrapper(bus):
    class Wraps:
        @hookimpl(wrapper=True)
        def session_end(self):
            return (yield)

    with pytest.raises(
        PluginError, match=r"^plugin Wraps: session_end is sent to each plugin separately"
    ):
        bus.register(Wraps())
