"""Functions of the script that listen to events: ``s.on(...)``."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from torchbus.bus.base import hookimpl
from torchbus.bus.filters import Filter
from torchbus.errors import UsageError


class Host(Protocol):
    def add_plugin(self, plugin: object, name: str | None = None) -> None: ...


class Listener:
    """One function, as a plugin with one method. It gets no events of trials."""

    hears_trials = False


class Listeners:
    """Registers functions of the script as plugins, whose names are the same on all ranks."""

    def __init__(self, session: Host) -> None:
        self._session = session
        self._added: Counter[str] = Counter()

    def add(self, event: str, function: Callable[..., Any], given: Filter) -> None:
        """Register a function. It comes after all plugins, and after those that were added before.

        Raises UsageError if there is no such event, or the function takes other arguments.
        """
        if not callable(function):
            raise UsageError(
                f"s.on({event!r}, {type(function).__name__}): pass a function to be called"
            )
        self._added[event] += 1
        listener = Listener()
        setattr(
            listener,
            event,
            hookimpl(trylast=True, every=given.every, once=given.once, main_only=given.main_only)(
                _method(event, function)
            ),
        )
        self._session.add_plugin(listener, f"s.on {event} {self._added[event]}")


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of that name, which can be marked: bound methods and objects can't."""

    @functools.wraps(function)
    def call(*arguments: object) -> object:
        return function(*arguments)

    call.__name__ = name
    return call
