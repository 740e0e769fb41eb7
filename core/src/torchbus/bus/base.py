"""The interface of plugins: marks and filters of listeners, and attributes that the bus reads."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, overload

import pluggy

from torchbus.errors import UsageError

Function = Callable[..., Any]
Listener = TypeVar("Listener", bound=Function)

hookspec = pluggy.HookspecMarker("torchbus")
_mark = pluggy.HookimplMarker("torchbus")


class Filter(NamedTuple):
    """Selects which occurrences of an event a listener receives.

    ``every=50`` selects the 50th, 100th, ... occurrence, ``once`` only the first of these, and
    ``main_only`` only those on rank 0.
    """

    every: int = 1
    once: bool = False
    main_only: bool = False


EVERYTHING = Filter()


def checked_filter(every: object, once: object, main_only: object) -> Filter:
    """Return the filter. Raises UsageError for other types and values."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise UsageError(f"every={every!r}: it must be a whole number from 1, as in every=50")
    for name, value in (("once", once), ("main_only", main_only)):
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r}: it must be True or False")
    return Filter(every, bool(once), bool(main_only))


class Filtered:
    """Counts events for the listeners that have filters. Checkpoints hold the counts.

    So a resumed run calls a listener at the same steps as an uninterrupted run.
    """

    def __init__(self, is_main: Callable[[], bool]) -> None:
        self._is_main = is_main
        self._counts: Counter[str] = Counter()
        self.is_used = False

    def apply(self, function: Function, name: str, given: Filter) -> Function:
        """Return a function that calls this one when the filter says so.

        The counts are stored under ``name``, the listener's name.
        """
        counts, is_main, self.is_used = self._counts, self._is_main, True

        def call(*arguments: object) -> object:
            counts[name] += 1
            late = counts[name] - given.every
            is_due = late == 0 if given.once else late % given.every == 0
            if not is_due or (given.main_only and not is_main()):
                return None
            return function(*arguments)

        return call

    def state_dict(self) -> dict[str, int]:
        return dict(self._counts)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._counts.clear()
        self._counts.update(state)


@overload
def hookimpl(function: Listener) -> Listener: ...


@overload
def hookimpl(
    *,
    tryfirst: bool = ...,
    trylast: bool = ...,
    optionalhook: bool = ...,
    wrapper: bool = ...,
    hookwrapper: bool = ...,
    specname: str | None = ...,
    every: int = ...,
    once: bool = ...,
    main_only: bool = ...,
) -> Callable[[Listener], Listener]: ...


def hookimpl(
    function: Listener | None = None,
    *,
    every: int = 1,
    once: bool = False,
    main_only: bool = False,
    **marks: Any,
) -> Listener | Callable[[Listener], Listener]:
    """Mark a method as a listener to the event of its name.

    Args:
        function: the method, if the marker has no arguments.
        every: 50 calls it the 50th, 100th, ... time that the event is sent to it.
        once: call it only the first of these times.
        main_only: call it on rank 0 only. It must not call what all ranks have to call.
        marks: pluggy's marks: ``tryfirst`` and ``trylast`` for the order, ``optionalhook`` if the
            event may be missing, ``wrapper``, ``specname``.

    Raises: UsageError: a filter has another type or value.
    """
    given = checked_filter(every, once, main_only)

    def mark(function: Listener) -> Listener:
        function.torchbus_filter = given  # type: ignore[attr-defined]
        return _mark(function, **marks)

    return mark if function is None else mark(function)


class ScriptListener:
    """Wraps a function of the script as a plugin with one method. It gets no events of trials."""

    hears_trials = False


def listener(event: str, function: Callable[..., Any], given: Filter) -> ScriptListener:
    """Return a plugin that calls a function at an event, after all others."""
    if not callable(function):
        raise UsageError(
            f"s.on({event!r}, {type(function).__name__}): pass a function to be called"
        )

    @functools.wraps(function)  # a new function, because bound methods and objects can't be marked
    def call(*arguments: object) -> object:
        return function(*arguments)

    call.__name__ = event
    plugin = ScriptListener()
    every, once, main_only = given
    mark = hookimpl(trylast=True, every=every, once=once, main_only=main_only)
    setattr(plugin, event, mark(call))
    return plugin


class Plugin:
    """Base class of plugins: every attribute that the bus reads, with its default.

    Inheriting from this class is optional.
    """

    owns: tuple[str, ...] = ()
    """Roles that only one active plugin can have, such as "strategy" or "precision".

    A second owner raises PluginConflict.
    """

    verbs: tuple[str, ...] = ()
    """Names of methods and properties that the loop's author calls on the session: ``s.<verb>``."""

    companions: tuple[str, ...] = ()
    """Names of plugins that are activated together with this one, if they are installed."""

    declares_events: ModuleType | type | None = None
    """A module or class of functions marked ``hookspec``: events that this plugin adds."""

    dry_run: bool = False
    """Whether the session only tries the script: others then write nothing to disks and servers."""

    hears_trials: bool = True
    """Whether the plugin gets the events of a trial, such as a search for a learning rate.

    Set False if the plugin counts, records or shows the course of the training. Otherwise, define
    ``state_dict`` and ``load_state_dict`` if it has a state, to have that restored afterwards.
    """
