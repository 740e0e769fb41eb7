"""``torchbus plugins``: lists installed plugins, and incompatible versions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

import torchbus
import torchbus.events
from torchbus.bus import discovery
from torchbus.bus.registry import Manager
from torchbus.plugin import PluginError

from torchbus_cli.parser import Parser, table

REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[.*?\])?\s*\(?(?P<range>[^;)]*)\)?(?P<marker>;.*)?"
)
CLAUSE = re.compile(r"(?P<sign>~=|[=<>!]=|<|>)\s*(?P<number>\d+(?:\.\d+)*)(?P<any>\.\*)?$")
Release = tuple[int, ...]


def misfits() -> list[str]:
    """Return a sentence for each requirement of an installed package that is not fulfilled.

    Only requirements of ``torchbus`` and ``torchbus-...`` packages are checked.
    """
    installed: dict[str, Distribution] = {}
    for one in distributions():
        installed.setdefault(_name(one.metadata["Name"]), one)  # Python imports the first one
    return [
        sentence
        for name, one in sorted(installed.items())
        for sentence in _misfits(name, one, installed)
    ]


def _misfits(name: str, one: Distribution, installed: dict[str, Distribution]) -> Iterator[str]:
    for line in one.requires or []:
        found = REQUIREMENT.match(line)
        if found is None or found["marker"] is not None:  # for an extra or another platform
            continue
        needed, wanted = _name(found["name"]), found["range"].strip()
        if not f"{needed}-".startswith("torchbus-"):
            continue
        there = installed.get(needed)
        if there is None:
            yield f"{name} {one.version} needs {needed}, which is missing: pip install {needed}"
        elif not fits(there.version, wanted):
            yield (
                f"{name} {one.version} needs {needed}{wanted}, and {needed} {there.version} is"
                f" installed: {_remedy(name, needed, wanted, there.version)}"
            )


def _remedy(name: str, needed: str, wanted: str, version: str) -> str:
    """Return the command that upgrades the older of the two packages."""
    newest = re.search(r"<\s*([\d.]+)", wanted)
    if newest and _release(version) >= _release(newest[1]):
        return f"pip install --upgrade {name}"
    return f'pip install --upgrade "{needed}{wanted}"'


def fits(version: str, wanted: str) -> bool:
    """Whether a version is in a range such as ``>=0.2,<0.3``. Unknown clauses are ignored."""
    return all(_fits(_release(version), clause.strip()) for clause in wanted.split(",") if clause)


def _fits(version: Release, clause: str) -> bool:
    found = CLAUSE.match(clause)
    if found is None:
        return True
    sign, number = found["sign"], _release(found["number"])
    begins = version[: len(number)] == number
    if sign == "~=":
        return version >= number and version[: len(number) - 1] == number[:-1]
    if found["any"]:
        return begins == (sign == "==")
    left, right = _padded(version), _padded(number)
    return {
        "==": left == right,
        "!=": left != right,
        "<=": left <= right,
        ">=": left >= right,
        "<": left < right,
        ">": left > right,
    }[sign]


def _padded(release: Release) -> Release:
    return release + (0,) * (6 - len(release))


def _release(version: str) -> Release:
    """Return the numbers of a version, without what follows them, as in "0.2.0rc1"."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _name(written: str) -> str:
    return re.sub(r"[-_.]+", "-", written).lower()


@dataclass(frozen=True)
class InstalledPlugin:
    """An installed plugin and its contributions.

    ``events`` are those to which its class or a helper class of its package listens, in the order
    of a loop. ``error`` says why it could not be imported, or is None.
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
    events = {event for listener in (maker, *helpers) for event in _marked(listener)}
    order = list(vars(torchbus.events))
    return sorted(
        events, key=lambda event: (order.index(event) if event in order else len(order), event)
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


DESCRIPTION = """List the installed plugins: their packages, and what they add to
session(...). With --events, list the events they listen to.

A session uses a plugin that it names, or whose strategy, logger or option it names. A plugin that
is only installed costs nothing.
"""
EXAMPLES = """  torchbus plugins
  torchbus plugins --events                   who listens to what?
  torchbus plugins --check                    which versions don't fit each other?
  torchbus plugins --json | python -m json.tool
  pip install torchbus-ddp                    adds a plugin
"""


def main(argv: list[str]) -> int:
    """List the installed plugins, and their options or the events they listen to."""
    parser = Parser("plugins", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of objects instead of a table"
    )
    parser.add_argument(
        "--events", action="store_true", help="print events instead of options and methods"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="print only what doesn't fit or can't be imported; exit status 1 if there is any",
    )
    given = parser.parse(argv)
    found = installed_plugins()
    if given.check:
        return _check(found, given.json)
    print(
        json.dumps([asdict(one) for one in found], indent=2)
        if given.json
        else _text(found, given.events)
    )
    return 0


def _check(found: list[InstalledPlugin], as_json: bool) -> int:
    wrong = [*misfits(), *(plugin.error for plugin in found if plugin.error is not None)]
    if as_json:
        print(json.dumps(wrong, indent=2))
    else:
        packages = {plugin.distribution for plugin in found}
        fine = f"torchbus {torchbus.__version__} and {len(packages)} packages with plugins fit"
        print("\n".join(wrong) or fine)
    return int(bool(wrong))


def _text(found: list[InstalledPlugin], with_events: bool) -> str:
    if not found:
        known = discovery.distributions("plugin").values()
        return f"no plugin is installed; pip install {' or '.join(known)}"
    shown = _listens if with_events else _provides
    rows = [
        (one.name, f"{one.distribution} {one.version}", one.error or shown(one)) for one in found
    ]
    return table([("NAME", "PACKAGE", "LISTENS TO" if with_events else "PROVIDES"), *rows])


def _listens(plugin: InstalledPlugin) -> str:
    return ", ".join(plugin.events)


def _provides(plugin: InstalledPlugin) -> str:
    provides = [
        f"{kind}: {', '.join(names)}"
        for kind, names in (
            ("strategy", plugin.strategies),
            ("logger", plugin.loggers),
            ("options", plugin.options),
            ("methods", [f"s.{verb}" for verb in plugin.verbs]),
        )
        if names
    ]
    return "; ".join(provides)
