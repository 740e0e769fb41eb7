"""Finds installed plugins, options, verbs and commands by their entry points.

Discovery is not activation: nothing is imported until a session asks for it. These are the groups:

- ``torchbus``: plugins by name.
- ``torchbus.strategy`` and ``torchbus.logger``.
- ``torchbus.combination``: strategies that replace another one if an option is given: "ddp+tp" is
  the strategy for ``strategy="ddp"`` with the option ``tp``.
- ``torchbus.preset``: strategies that stand for options of ``session``, such as those in a file:
  the plugin's ``session_options`` gets the options of the call, and returns the complete options.
- ``torchbus.option``: options of ``session`` that a plugin's constructor takes.
- ``torchbus.verb``: methods of the session that need a plugin.
- ``torchbus.event``: events that a package declares, by the module that declares them.
- ``torchbus.companion``: plugins to activate if the script has imported the module of that name.
- ``torchbus.launched_rank``: functions to call in a rank that runs the script again, by the
  module that the script imports.
- ``torchbus.service``: services of a session's context that the core lacks: "launcher", "batches",
  "random".
- ``torchbus.always``: functions that return plugins for every session.
- ``torchbus.default``: the default "strategy", and plugins to activate with any "logger".
- ``torchbus.command``: commands of ``torchbus``.
- ``torchbus.testing``: names that the testing kit offers for other packages.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from torchbus.errors import PluginConflict, PluginError, PluginNotInstalled, UsageError

LISTED_AT_MOST = 60  # longer lists have a command: torchbus options, torchbus plugins
KINDS = ("plugin", "strategy", "combination", "logger", "option", "verb", "event", "companion")


def _by_package(entries: list[EntryPoint]) -> list[EntryPoint]:
    """Sort the entry points of one name by package, and drop duplicates.

    The version of a single one is not read: the files with versions are slow to parse.
    """
    if not entries[1:]:
        return entries
    found = {(version(entry), entry.value): entry for entry in reversed(entries)}
    return [found[key] for key in sorted(found)]


@cache
def offers() -> dict[str, dict[str, list[EntryPoint]]]:
    """Return all installed entry points of torchbus, by kind and name. The disk is read once.

    A name that several packages offer has several entry points.
    """
    found = entry_points()
    groups = [group for group in found.groups if group.partition(".")[0] == "torchbus"]
    return {
        group.partition(".")[2] or "plugin": _named(found.select(group=group)) for group in groups
    }


def _named(entries: Iterable[EntryPoint]) -> dict[str, list[EntryPoint]]:
    name_of = attrgetter("name")
    groups = groupby(sorted(entries, key=name_of), key=name_of)
    return {name: _by_package(list(same)) for name, same in groups}


def installed(kind: str) -> dict[str, EntryPoint]:
    """Return the installed entry points of a kind, by name."""
    return {name: entries[0] for name, entries in offers().get(kind, {}).items()}


def every(kind: str) -> list[EntryPoint]:
    """Return all installed entry points of a kind, contested ones too."""
    return [entry for entries in offers().get(kind, {}).values() for entry in entries]


def find(kind: str, name: str, also: tuple[str, ...] = ()) -> EntryPoint:
    """Return the entry point of that name.

    Raises PluginConflict if several installed packages have the name, PluginNotInstalled if a known
    package has it that is not installed, and otherwise UsageError with a hint. The hint also
    considers ``also``, names that exist without a plugin.
    """
    entry = installed(kind).get(name)
    if entry is not None:
        refuse_contested(kind, name)
        return entry
    if name in distributions(kind):
        raise missing(kind, name)
    known = sorted({*installed(kind), *distributions(kind), *also})
    remedy = hint(kind, name) or _value_of(also, name) or _nearest(kind, name, known)
    raise UsageError(f"unknown {_what(kind, name)}: {remedy}")


def _value_of(options: tuple[str, ...], name: str) -> str:
    """Return what to write if the name is not an option but the value of one, as "fsdp"."""
    found = [option for option in options if name in {*installed(option), *distributions(option)}]
    return f"here it is {found[0]}={name!r}" if found else ""


def _nearest(kind: str, name: str, known: list[str]) -> str:
    if near := difflib.get_close_matches(name.lower(), known, 3):
        return f"did you mean {' or '.join(map(repr, near))}?"
    if len(known) > LISTED_AT_MOST:
        return f"`torchbus {kind}s` lists those that exist"
    return f"known are {', '.join(known) or 'none'}"


def missing(kind: str, name: str) -> PluginNotInstalled:
    """Return the error for a known name whose package is not installed."""
    what, called = _what(kind, name), hint(kind, name)
    return PluginNotInstalled(
        f"{what} needs a plugin that is not installed: pip install {distributions(kind)[name]}"
        + (f" ({called})" if called else "")
    )


def distributions(kind: str) -> dict[str, str]:
    """Return which distribution provides each known name of a kind, for errors and lists.

    They are in a file generated from the packages' metadata, which is read only when needed.
    """
    return _read("distributions.json").get(kind, {})


def hints(kind: str) -> dict[str, str]:
    """Return what to write for the names of other libraries, which are never accepted."""
    return _read("hints.json").get(kind, {})


def hint(kind: str, name: str) -> str:
    """Return what to write for a name of another library, or ""."""
    return hints(kind).get(name) or hints(kind).get(name.lower(), "")


@cache
def _read(name: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / name).read_text("utf-8"))
    return found


def refuse_contested(kind: str, name: str) -> None:
    """Raise PluginConflict if several packages offer that name."""
    entries = offers().get(kind, {}).get(name, [])
    if entries[1:]:
        packages = " and ".join(f"{version(entry)} ({entry.value})" for entry in entries)
        raise PluginConflict(
            f"{_what(kind, name)} is offered by {packages}: uninstall one of them, or pass the"
            " plugin itself as an object"
        )


def _what(kind: str, name: str) -> str:
    return {
        "verb": f"s.{name}",
        "option": f"option {name!r}",
        "testing": f"{name} of the testing kit",
        "service": "more than one rank" if name == "launcher" else f"session.{name}",
    }.get(kind, f"{kind} {name!r}")


def load(entry: EntryPoint) -> Any:
    """Import what an entry point names. Raises PluginError, naming the distribution."""
    try:
        return entry.load()
    except Exception as error:
        raise PluginError(
            f"plugin {entry.name} ({version(entry)}) could not be imported: {error!r}"
        ) from error


def version_of(package: str) -> str:
    """Return the version of the distribution that has a plugin in this top-level package, or ""."""
    for kind in KINDS:
        for entry in installed(kind).values():
            if entry.module.split(".")[0] == package and entry.dist is not None:
                return entry.dist.version
    return ""


def version(entry: EntryPoint) -> str:
    """Return distribution and version of an entry point, as in "torchbus 0.1.0"."""
    return (
        f"{entry.dist.name} {entry.dist.version}"
        if entry.dist is not None
        else "unknown distribution"
    )
