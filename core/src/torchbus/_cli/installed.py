"""Inspects the installed plugins without a session."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import torchbus.events
from torchbus._bus import discovery
from torchbus._bus.listeners import Manager
from torchbus.errors import PluginError


@dataclass(frozen=True)
class InstalledPlugin:
    """What a plugin contributes.

    ``events``: those that its own class or a helper class of its package listens to, in the order
    of a loop.
    ``error``: why it could not be imported, or None.
    """

    name: str
    distribution: str
    version: str
    strategies: list[str]
    loggers: list[str]
    options: list[str]
    verbs: list[str]
    events: list[str]
    error: str | None = None


def installed_plugins() -> list[InstalledPlugin]:
    """Import all installed plugins, and describe each."""
    return [_look_at(entry) for entry in _entries()]


def _entries() -> list[EntryPoint]:
    """Return one entry point for each plugin, since several entry points may name the same one."""
    by_value: dict[str, EntryPoint] = {}
    for kind in discovery.KINDS:
        for entry in discovery.every(kind):
            by_value.setdefault(entry.value, entry)
    return list(by_value.values())


def _look_at(entry: EntryPoint) -> InstalledPlugin:
    strategies, loggers, options, verbs = (
        _names(kind, entry) for kind in ("strategy", "logger", "option", "verb")
    )
    events, error = [], None
    try:
        events = _events(entry)
    except PluginError as failed:
        error = str(failed)
    name, _, version = discovery.version(entry).partition(" ")
    return InstalledPlugin(
        entry.name, name, version, strategies, loggers, options, verbs, events, error
    )


def _names(kind: str, entry: EntryPoint) -> list[str]:
    return [other.name for other in discovery.every(kind) if other.value == entry.value]


def _events(entry: EntryPoint) -> list[str]:
    maker = discovery.load(entry)
    foreign = [
        other.attr
        for other in _entries()
        if other.module == entry.module and other.value != entry.value
    ]
    helpers = [helper for helper in _classes(entry.module) if helper.__name__ not in foreign]
    heard = {event for listener in (maker, *helpers) for event in _marked(listener)}
    order = list(vars(torchbus.events))
    return sorted(
        heard, key=lambda event: (order.index(event) if event in order else len(order), event)
    )


def _classes(package: str) -> list[type]:
    modules = [
        module for name, module in list(sys.modules.items()) if f"{name}.".startswith(f"{package}.")
    ]
    things = [
        thing
        for module in modules
        for thing in vars(module).values()
        if getattr(thing, "__module__", None) == module.__name__
    ]
    return [thing for thing in things if isinstance(thing, type)]


def _marked(listener: object) -> list[str]:
    manager = Manager("torchbus")
    options = {name: manager.parse_hookimpl_opts(listener, name) for name in dir(listener)}
    return [given.get("specname") or name for name, given in options.items() if given is not None]
