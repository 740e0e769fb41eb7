"""The bus calls hot events from flat tuples of functions, and keeps these up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pluggy

Function = Callable[..., Any]


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
