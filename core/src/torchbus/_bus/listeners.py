"""Who listens: hot events are called from flat tuples of functions, which are kept up to date."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pluggy

Function = Callable[..., Any]
Named = tuple[str, object]


class Manager(pluggy.PluginManager):
    """Finds the listeners of a plugin without reading its properties.

    pluggy 1.7 does so by itself. Older releases read all, also one that only the loop may read,
    such as ``s.is_last_batch``.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if isinstance(getattr(type(plugin), name, None), property | functools.cached_property):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Listeners:
    """The functions of one hot event in calling order. Each takes all arguments by position.

    ``now`` becomes another tuple when a plugin comes or goes. So a plugin may register another one
    while the event is sent.
    """

    __slots__ = ("__weakref__", "now")

    def __init__(self, now: tuple[Function, ...]) -> None:
        self.now = now


class Compiled:
    """Updates all ``Listeners`` that are in use."""

    def __init__(self, hook: object) -> None:
        self._hook = hook
        self._held: dict[str, WeakSet[Listeners]] = {}

    def listeners(self, event: str) -> Listeners:
        """Return the functions of an event, and keep them up to date from now on."""
        held = Listeners(self._functions(event))
        self._held.setdefault(event, WeakSet()).add(held)
        return held

    def release(self, held: Listeners) -> None:
        """Empty these listeners for good: their holder must send nothing more."""
        for those in self._held.values():
            those.discard(held)
        held.now = ()

    def refresh(self) -> None:
        """Update all listeners: a plugin has come or gone."""
        for event, those in self._held.items():
            functions = self._functions(event)
            for held in those:
                held.now = functions

    def _functions(self, event: str) -> tuple[Function, ...]:
        caller = getattr(self._hook, event)
        return tuple(
            by_position(impl, caller.spec.argnames) for impl in reversed(caller.get_hookimpls())
        )


def by_position(impl: pluggy.HookImpl, names: tuple[str, ...]) -> Function:
    """Return the function itself if it takes all arguments in order.

    Otherwise return one that picks the arguments which it takes.
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
    return lambda *arguments: function(*[arguments[i] for i in picked])


class Muted:
    """Takes plugins from a manager, and puts them back where they were in the order of calls.

    ``registered``: called with each plugin that is in the manager anew.
    """

    def __init__(self, manager: Manager, registered: Callable[[object], object]) -> None:
        self._manager = manager
        self._registered = registered
        self._before: list[Named] = []
        self._silent: list[object] = []

    def there(self) -> list[Named]:
        """All plugins in the order of registration, those that hear nothing too."""
        found = [(name, one) for name, one in self._manager.list_name_plugin() if one is not None]
        kept = [pair for pair in self._before if pair in found or pair[1] in self._silent]
        return [*kept, *(pair for pair in found if pair not in self._before)]

    def take(self, plugins: list[object]) -> None:
        """Let these hear nothing."""
        self._before = self.there()
        self._silent = list(plugins)
        for one in plugins:
            self._manager.unregister(one)

    def give_back(self) -> None:
        """Let all hear again, in their old order. Those that came meanwhile stay the last."""
        order = self.there()
        for one in self._manager.get_plugins():
            self._manager.unregister(one)
        self._before, self._silent = [], []
        for name, one in order:
            self._manager.register(one, name)
            self._registered(one)
