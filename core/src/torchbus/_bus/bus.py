"""The bus: pluggy registers, validates and orders; hot events are compiled to flat tuples of functions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import pluggy

from torchbus import events
from torchbus.errors import PluginConflict, PluginError, TorchbusError, UsageError


class Bus:
    """Who listens to what. ``bus.hook.<event>(...)`` sends an event; ``bus.listeners(event)`` are its functions."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        """``taken``: names that no plugin may bring as a verb."""
        self._taken = taken
        self.on_change: Callable[[], object] = lambda: None  # for those who keep listeners
        self._manager = pluggy.PluginManager("torchbus")
        self._manager.add_hookspecs(events)
        self.hook = self._manager.hook

    def add_events(self, specs: ModuleType | type) -> None:
        """Declare the events of a module or class, whose functions are marked ``pluggy.HookspecMarker("torchbus")``."""
        self._manager.add_hookspecs(specs)

    def register(self, plugin: object, name: str | None = None) -> str:
        """Register a plugin object; its name defaults to its class's. Raises UsageError, naming what is wrong."""
        if isinstance(plugin, type):
            raise UsageError(f"plugin {plugin.__name__} is a class: pass an object, {plugin.__name__}()")
        name = name or type(plugin).__name__
        for verb in getattr(plugin, "verbs", ()):
            if verb in self._taken:
                raise UsageError(f"plugin {name} brings s.{verb}, which the session has itself: give it another name")
        self._refuse_conflict(plugin, name)
        try:
            specs = getattr(plugin, "declares_events", None)
            if specs is not None:
                self.add_events(specs)
            self._manager.register(plugin, name)
        except pluggy.PluginValidationError as error:
            self._manager.unregister(plugin) if self._manager.is_registered(plugin) else None
            raise UsageError(f"plugin {name}: {self._explain_validation(error)}") from error
        except ValueError as error:
            raise PluginConflict(f"plugin {name} is active twice; pass it once ({error})") from error
        except Exception as error:
            raise PluginError(f"plugin {name} could not be registered: {error!r}") from error
        self._refuse_second_engine(plugin, name)
        self._name_errors(plugin)
        self.on_change()
        return name

    def start(self, plugin: object, session: object) -> None:
        """Send ``session_start`` to a plugin that comes late, and to no other. Its wrapper has nothing left to wrap."""
        caller: Any = self.hook.session_start
        for impl in caller.get_hookimpls():
            if impl.plugin is plugin and not (impl.hookwrapper or impl.wrapper):
                _compile(impl, caller.spec.argnames)(session)

    def unregister(self, plugin: object) -> None:
        self._manager.unregister(plugin)
        self.on_change()

    def check_pending(self) -> None:
        """Refuse functions marked as events that nobody declares, with the nearest names."""
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            unknown = str(error).split("unknown hook ")[-1].split(" ")[0].strip("'")
            near = difflib.get_close_matches(unknown, self.events(), 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(self.events())}"
            name = self._manager.get_name(error.plugin)
            raise UsageError(f"plugin {name} listens to {unknown!r}, which is no event{hint}") from error

    def events(self) -> list[str]:
        """Names of all declared events: the core's in loop order, then those of plugins."""
        declared = [name for name, caller in vars(self.hook).items() if getattr(caller, "spec", None) is not None]
        order = list(vars(events))
        return sorted(declared, key=lambda name: order.index(name) if name in order else len(order))

    def plugins(self) -> list[tuple[str, Any]]:
        """Active plugins with their names, in order of registration."""
        return [(name, plugin) for name, plugin in self._manager.list_name_plugin() if plugin is not None]

    def heard(self, event: str) -> bool:
        """Whether somebody listens to the event."""
        return bool(getattr(self.hook, event).get_hookimpls())

    def events_of(self, plugin: object) -> list[str]:
        """The events that a registered plugin listens to."""
        return [caller.name for caller in self._manager.get_hookcallers(plugin) or []]

    def listeners(self, event: str) -> tuple[Callable[..., Any], ...]:
        """The functions of a hot event in calling order, each taking all of the event's arguments by position."""
        caller: Any = getattr(self.hook, event)
        names = caller.spec.argnames
        return tuple(_compile(impl, names) for impl in reversed(caller.get_hookimpls()))

    def _refuse_conflict(self, plugin: object, name: str) -> None:
        for other_name, other in self.plugins():
            for thing in set(getattr(plugin, "owns", ())) & set(getattr(other, "owns", ())):
                raise PluginConflict(f"{other_name} and {name} both own the {thing}: pass only one of them")
            for verb in set(getattr(plugin, "verbs", ())) & set(getattr(other, "verbs", ())):
                raise PluginConflict(f"{other_name} and {name} both bring s.{verb}: pass only one of them")

    def _refuse_second_engine(self, plugin: object, name: str) -> None:
        for event in events.ONE_LISTENER:
            there = [impl for impl in getattr(self.hook, event).get_hookimpls() if impl.plugin is not plugin]
            if there and event in self.events_of(plugin):
                self.unregister(plugin)
                raise PluginConflict(f"{there[0].plugin_name} and {name} both listen to {event}, which one plugin does: pass only one of them")

    def _name_errors(self, plugin: object) -> None:
        """An error of the plugin's carries its name. Not in hot events: there its file is in the traceback."""
        for caller in self._manager.get_hookcallers(plugin) or []:
            for impl in caller.get_hookimpls():
                if impl.plugin is not plugin:
                    continue
                wraps = impl.hookwrapper or impl.wrapper
                if wraps and caller.name in events.HOT:
                    self.unregister(plugin)
                    raise PluginError(f"plugin {impl.plugin_name}: {caller.name} is a hot event and can't be a wrapper")
                if not wraps and caller.name not in (*events.HOT, *events.RUN_THE_LOOPS_OWN_WORK):
                    impl.function = _naming(impl.function, impl.plugin_name, caller.name)  # type: ignore[misc]

    @staticmethod
    def _explain_validation(error: pluggy.PluginValidationError) -> str:
        return str(error).replace("\n", " ")


def _naming(function: Callable[..., Any], plugin: str, event: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TorchbusError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {plugin} failed in {event}: {error!r}") from error

    return call


def _compile(impl: pluggy.HookImpl, names: tuple[str, ...]) -> Callable[..., Any]:
    """The function itself where it takes all arguments in order, else one that picks those that it takes."""
    function: Callable[..., Any] = impl.function
    if tuple(impl.argnames) == tuple(names):
        return function
    picked = [names.index(argument) for argument in impl.argnames]
    return lambda *arguments: function(*[arguments[i] for i in picked])
