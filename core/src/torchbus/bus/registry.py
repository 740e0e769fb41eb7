"""The bus: a plugin registry on pluggy, with cached call lists for hot events."""

from __future__ import annotations

import difflib
import functools
import operator
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from weakref import WeakSet

import pluggy

from torchbus.bus import discovery
from torchbus.bus.base import EVERYTHING, Filtered, Function
from torchbus.errors import PluginConflict, PluginError, TorchbusError, UsageError


class Bus:
    """Plugin registry on pluggy's PluginManager, with cached call lists for hot events.

    ``bus.hook.<event>(...)`` sends an event. ``bus.listeners(event)`` returns the functions of a
    hot event, which the bus updates.
    """

    def __init__(self, declared: ModuleType, reserved: Collection[str] = ()) -> None:
        """``declared`` has the core's events. Names in ``reserved`` can't be verbs of plugins."""
        self._declared = declared
        self._reserved = reserved
        self._hot = set(self._declared.HOT)
        self.is_main: Callable[[], bool] = lambda: True
        """Whether this is rank 0, for listeners marked ``main_only``."""
        self._filtered = Filtered(lambda: self.is_main())
        self._manager = Manager("torchbus")
        self._manager.add_hookspecs(declared)
        self.hook = self._manager.hook
        self._held: dict[str, WeakSet[Listeners]] = {}
        self._before_mute: list[tuple[str, object]] = []
        self._silent: list[object] = []
        self._awaited: list[tuple[str, Callable[[], object]]] = []
        self.on_change: list[Callable[[], object]] = [self._recompile]
        """Functions to call after a plugin was registered or removed."""

    def add_events(self, specs: ModuleType | type) -> None:
        """Declare the events of a module or class, whose functions are marked ``hookspec``.

        An attribute ``HOT`` names the hot ones.
        """
        there, new = self.events(), ModuleType("events")
        found = {name: getattr(specs, name) for name in dir(specs)}
        declared = {name: one for name, one in found.items() if hasattr(one, "torchbus_spec")}
        vars(new).update({name: spec for name, spec in declared.items() if name not in there})
        if not declared or set(declared) - set(there):
            self._manager.add_hookspecs(new)
        for event in getattr(specs, "HOT", ()):
            self._hot.add(event)
            for impl in getattr(self.hook, event).get_hookimpls():
                self._refuse_wrapper(impl, f"{event} is sent to each plugin separately")
                impl.function = getattr(impl.function, "torchbus_unnamed", impl.function)

    def register(self, plugin: object, name: str | None = None) -> str:
        """Register a plugin object. Its name defaults to that of its class.

        Raises UsageError, PluginConflict or PluginError if it can't be registered.
        """
        if isinstance(plugin, type):
            raise UsageError(
                f"plugin {plugin.__name__} is a class: pass an object, {plugin.__name__}()"
            )
        name = name or type(plugin).__name__
        try:
            self._refuse_conflict(plugin, name)
            if (specs := getattr(plugin, "declares_events", None)) is not None:
                self.add_events(specs)
            self._manager.register(plugin, name)
        except TorchbusError:
            raise
        except pluggy.PluginValidationError as error:
            self._manager.unregister(plugin) if self._manager.is_registered(plugin) else None
            said = str(error).replace("\n", " ")
            if (wrong := re.search(r"definition: (\w+)\(.*{(.*)}", said)) is not None:
                there = ", ".join(getattr(self.hook, wrong[1]).spec.argnames)
                said = f"{wrong[1]} has no argument {wrong[2]}; it has {there or 'none'}"
            raise UsageError(f"plugin {name}: {said}") from error
        except Exception as error:
            raise PluginError(f"plugin {name} could not be registered: {error!r}") from error
        self._refuse_second_engine(plugin, name)
        self._name_errors(plugin)
        if self._filtered.is_used and not self._manager.is_registered(self._filtered):
            self._manager.register(self._filtered, "filters")
        self._report_of_change()
        return name

    def start(self, plugin: object, session: object) -> None:
        """Send ``session_start`` only to this plugin, which was registered late."""
        for impl, function in self.calls("session_start"):
            if impl.plugin is plugin:
                function(session)

    def calls(self, event: str) -> list[tuple[pluggy.HookImpl, Function]]:
        """Return the listeners of an event, without wrappers, to be called one by one."""
        caller: Any = getattr(self.hook, event)
        found = [impl for impl in reversed(caller.get_hookimpls()) if not _wraps(impl)]
        return [(impl, by_position(impl, caller.spec.argnames)) for impl in found]

    def unregister(self, plugin: object) -> None:
        self._manager.unregister(plugin)
        self._report_of_change()

    def check_pending(self) -> None:
        """Declare the events that listeners need. Raises UsageError if no package declares one."""
        while True:
            try:
                return self._manager.check_pending()
            except pluggy.PluginValidationError as error:
                unknown = str(error).split("unknown hook ")[-1].split(" ")[0].strip("'")
                self.add_events(self._declaring(unknown, error.plugin))

    def _declaring(self, event: str, listener: object) -> Any:
        """Return the installed module or class that declares an event, which no plugin declares."""
        name = self._manager.get_name(listener)
        known = discovery.installed("event")
        if event in known:
            return discovery.load(known[event])
        distribution = discovery.distributions("event").get(event)
        if distribution is not None:
            raise UsageError(
                f"plugin {name} listens to {event!r}, an event of {distribution}, which is not"
                f" installed: pip install {distribution}, or mark the listener"
                " hookimpl(optionalhook=True)"
            )
        there = list(dict.fromkeys([*self.events(), *known]))
        near = difflib.get_close_matches(event, there, 3)
        guess = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(there)}"
        hint = discovery.hint("event", event) or guess
        raise UsageError(f"plugin {name} listens to {event!r}, which is not an event; {hint}")

    def events(self) -> list[str]:
        """Return all declared events: the core's in loop order, then those of plugins."""
        declared = [
            name
            for name, caller in vars(self.hook).items()
            if getattr(caller, "spec", None) is not None
        ]
        order = list(vars(self._declared))
        return sorted(declared, key=lambda name: order.index(name) if name in order else len(order))

    def plugins(self) -> list[tuple[str, object]]:
        """Return the active plugins with their names, in order of registration, also muted ones."""
        found = [(name, one) for name, one in self._manager.list_name_plugin() if one is not None]
        before = [pair for pair in self._before_mute if pair in found or pair[1] in self._silent]
        return [*before, *(pair for pair in found if pair not in self._before_mute)]

    @contextmanager
    def muted(self, plugins: list[object]) -> Iterator[None]:
        """Inside, these plugins get no events.

        ``plugins`` still lists them, and they return to their place in the order. Plugins that are
        registered meanwhile come last, also afterwards.
        """
        outside = self._before_mute, self._silent
        self._before_mute, self._silent = self.plugins(), [*self._silent, *plugins]
        for one in plugins:
            self._manager.unregister(one)
        self._report_of_change()
        try:
            yield
        finally:
            order = self.plugins()
            for one in self._manager.get_plugins():
                self._manager.unregister(one)
            self._before_mute, self._silent = outside
            for name, one in order:
                if one not in self._silent:
                    self._manager.register(one, name)
                    self._name_errors(one)
            self._report_of_change()

    def listeners(self, event: str) -> Listeners:
        """Return the functions of a hot event, and keep them up to date from now on."""
        held = Listeners(self._functions(event))
        self._held.setdefault(event, WeakSet()).add(held)
        return held

    def release(self, held: Listeners) -> None:
        """Empty these listeners permanently: their holder must send no more events."""
        for those in self._held.values():
            those.discard(held)
        held.now = ()

    def once_listened(self, event: str, call: Callable[[], object]) -> None:
        """Call ``call`` once, as soon as a plugin listens to the event."""
        self._awaited.append((event, call))
        self._call_awaited()

    def _call_awaited(self) -> None:
        for one in [one for one in self._awaited if self.has_listeners(one[0])]:
            self._awaited.remove(one)
            one[1]()

    def _recompile(self) -> None:
        for event, those in self._held.items():
            functions = self._functions(event)
            for held in those:
                held.now = functions

    def _functions(self, event: str) -> tuple[Function, ...]:
        return tuple(function for _, function in self.calls(event))

    def listened(self) -> set[str]:
        """Return the events that have listeners."""
        return {name for name, caller in vars(self.hook).items() if caller.get_hookimpls()}

    def has_listeners(self, event: str) -> bool:
        """Whether the event has a listener."""
        caller = getattr(self.hook, event, None)
        return caller is not None and bool(caller.get_hookimpls())

    def _report_of_change(self) -> None:
        self._call_awaited()
        for report in tuple(self.on_change):
            report()

    def _refuse_conflict(self, plugin: object, name: str) -> None:
        for verb in set(getattr(plugin, "verbs", ())).intersection(self._reserved):
            raise UsageError(
                f"plugin {name} adds s.{verb}, which the session has already: give it another name"
            )
        for other_name, other in self.plugins():
            for thing in set(getattr(plugin, "owns", ())) & set(getattr(other, "owns", ())):
                raise PluginConflict(
                    f"{other_name} and {name} both own the {thing}: pass only one of them"
                )
            for verb in set(getattr(plugin, "verbs", ())) & set(getattr(other, "verbs", ())):
                raise PluginConflict(
                    f"{other_name} and {name} both add s.{verb}: pass only one of them"
                )
        if self._manager.has_plugin(name) or self._manager.is_registered(plugin):
            raise PluginConflict(f"plugin {name} is active twice; pass it once")

    def _refuse_second_engine(self, plugin: object, name: str) -> None:
        for event in self._declared.ONE_LISTENER:
            others = [one for one in self.order(event) if one != name]
            if others and name in self.order(event):
                self.unregister(plugin)
                raise PluginConflict(
                    f"{others[-1]} and {name} both listen to {event}, which only one"
                    " plugin may do: pass only one of them"
                )

    def order(self, event: str) -> list[str]:
        """Return the names of the plugins that listen to an event, in the order of the calls."""
        caller = getattr(self.hook, event)
        return [impl.plugin_name for impl in reversed(caller.get_hookimpls())]

    def _name_errors(self, plugin: object) -> None:
        """Let every error of the plugin carry the plugin's name, and apply filters.

        Hot events are left out: there, the traceback shows the plugin's file.
        """
        for caller in self._manager.get_hookcallers(plugin) or []:
            for impl in caller.get_hookimpls():
                if impl.plugin is not plugin:
                    continue
                self._filter(impl, caller.name)
                if caller.name in (*self._hot, *self._declared.CALLED_ALONE):
                    self._refuse_wrapper(impl, f"{caller.name} is sent to each plugin separately")
                unchanged = *self._hot, *self._declared.RUN_THE_SCRIPTS_WORK
                if not _wraps(impl) and caller.name not in unchanged:
                    impl.function = _naming(impl.function, impl.plugin_name, caller.name)  # type: ignore[misc]

    def _refuse_wrapper(self, impl: pluggy.HookImpl, why: str) -> None:
        if _wraps(impl):
            self.unregister(impl.plugin)
            raise PluginError(f"plugin {impl.plugin_name}: {why}, so use @hookimpl without wrapper")

    def _filter(self, impl: pluggy.HookImpl, event: str) -> None:
        given = getattr(impl.function, "torchbus_filter", EVERYTHING)
        if given == EVERYTHING:
            return
        self._refuse_wrapper(impl, f"{event} has a filter")
        name = f"{impl.plugin_name}.{impl.function.__name__}"
        impl.function = self._filtered.apply(impl.function, name, given)  # type: ignore[misc]


def _naming(function: Callable[..., object], plugin: str, event: str) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*arguments: object) -> object:
        try:
            return function(*arguments)
        except TorchbusError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {plugin} failed in {event}: {error!r}") from error

    call.torchbus_unnamed = function  # type: ignore[attr-defined]
    return call


def _wraps(impl: pluggy.HookImpl) -> bool:
    return impl.hookwrapper or impl.wrapper


class Manager(pluggy.PluginManager):
    """Finds the listeners of a plugin without reading its properties.

    pluggy 1.7 does so too. Older releases read all properties, even those that only the loop may
    read, such as ``s.is_last_batch``. All releases take half of their time for dunder names.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        owner = getattr(type(plugin), name, None)
        if name.startswith("__") or isinstance(owner, property | functools.cached_property):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Listeners:
    """The functions of one hot event in calling order. Each takes all arguments by position.

    ``now`` becomes another tuple when a plugin is registered or removed. So a plugin may register
    another one while the event is sent.
    """

    __slots__ = ("__weakref__", "now")

    def __init__(self, now: tuple[Function, ...]) -> None:
        self.now = now


def by_position(impl: pluggy.HookImpl, names: tuple[str, ...]) -> Function:
    """Return the function itself if it takes all arguments in order.

    Otherwise, return a function that passes only the arguments that it takes.
    """
    function: Function = impl.function
    if tuple(impl.argnames) == tuple(names):
        return function
    picked = [names.index(argument) for argument in impl.argnames]
    if not picked:
        return lambda *_: function()
    if len(picked) == 1:
        only = picked[0]
        return lambda *arguments: function(arguments[only])
    pick = operator.itemgetter(*picked)
    return lambda *arguments: function(*pick(arguments))
