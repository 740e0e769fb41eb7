"""From the words of ``session(...)`` to plugin objects."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from torchbus._bus import discovery, misuse
from torchbus._bus.bus import Bus
from torchbus._launch.request import FORMS
from torchbus.errors import PluginConflict, PluginError, UsageError

if TYPE_CHECKING:
    from torchbus._ranks.world import World
    from torchbus._session.context import Context

CORE_OPTIONS = (
    "strategy", "devices", "accelerator", "num_nodes", "launch", "logger", "capture", "verbose", "print_all_ranks",
    "timeout_s", "hang_timeout", "freeze_timeout",
)  # fmt: skip
Named = list[tuple[str, object]]


def expect(name: str, value: Any, types: type | tuple[type, ...], words: str) -> None:
    """Raise UsageError unless an option has one of these types (a bool is no int)."""
    wanted = types if isinstance(types, tuple) else (types,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise UsageError(f"{name}={value!r} is a {type(value).__name__}: it must be {words}")


def check(given: dict[str, Any]) -> None:
    """Raise UsageError for a wrong type or value among the session's own options."""
    for name in ("capture", "verbose", "print_all_ranks"):
        expect(name, given[name], bool, "True or False")
    expect("num_nodes", given["num_nodes"], int, "a number of machines")
    for name in ("timeout_s", "hang_timeout", "freeze_timeout"):
        expect(name, given[name], (int, float), "a number of seconds")
        if not given[name] > 0:
            raise UsageError(f"{name}={given[name]}: it must be positive")
    expect("accelerator", given["accelerator"], str, "'auto', 'cpu' or 'gpu'")
    if given["num_nodes"] < 1:
        raise UsageError(f"num_nodes={given['num_nodes']}: there must be at least one")
    if given["launch"] not in FORMS:
        raise UsageError(f"launch={given['launch']!r} is unknown: use {' or '.join(map(repr, FORMS))}")


def require_listener(bus: Bus, **given: object) -> None:
    """A strategy or logger that is an object must listen to some event."""
    for name, value in given.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(one, str | bool | None) and not bus.events_of(one) and not hasattr(one, "companions"):
                raise UsageError(f"{name}={one!r} is no {name}: pass a name, or an object that listens to events")


def refuse_missing_ranks(session: Context, answer: World | None) -> None:
    """Raise UsageError where several ranks are asked for, or were started by a launcher, or are in a strategy's ``answer`` to ``launch``, and
    the session has not got them."""
    asked, strategy = max(session.ranks_asked_for, 1 if answer is None else answer.world_size), session.options["strategy"]
    if session.world_size > 1 or asked == 1:
        return
    remedy = "leave strategy out" if strategy is None else "its listener to `launch` returns session.start_ranks()"
    name = strategy if isinstance(strategy, str | None) else type(strategy).__name__
    raise UsageError(f"{asked} ranks are asked for, and strategy={name!r} starts and joins none: {remedy}")


def resolve(plugins: tuple[object, ...], strategy: object, logger: object, options: Mapping[str, Any]) -> Named:
    """Plugin objects with their names: those given, the strategy, loggers, and the owners of options."""
    objects = [plugin for plugin in plugins if not isinstance(plugin, str)]
    for plugin in objects:
        misuse.refuse_no_plugin(plugin)
    named: Named = [_given(plugin) for plugin in objects]
    wanted = Wanted()
    for name in [plugin for plugin in plugins if isinstance(plugin, str)]:
        wanted.once(discovery.find("plugin", name))
    chosen = discovery.find("strategy", strategy, ("auto",)) if isinstance(strategy, str) else None
    if chosen is not None:
        wanted.options_of(chosen)
    elif strategy is not None:
        named.append(_given(strategy))
    loggers = [one for one in (logger if isinstance(logger, list | tuple) else [logger]) if one is not None and one is not False]
    for one in loggers:
        if one is True or isinstance(one, str):
            wanted.options_of(discovery.find("logger", "local" if one is True else one))
        else:
            named.append(_given(one))
    for name, value in options.items():
        owner = chosen if chosen is not None and _takes(chosen, name) else discovery.find("option", name, CORE_OPTIONS)
        wanted.options_of(owner)[name] = value
    named += [(name, _make(entry, given, named)) for name, (entry, given) in wanted.items()]
    _refuse_options_of_another_strategy(named, wanted, chosen)
    return named + _companions(named, ("log",) if loggers else ())


class Wanted(dict[str, tuple[EntryPoint, dict[str, Any]]]):
    """The installed plugins that a call wants, by name, with the options of each: several entry points may name one plugin."""

    def options_of(self, entry: EntryPoint) -> dict[str, Any]:
        """Raises PluginConflict where another package's plugin of that name is wanted as well."""
        plugin = next((found for found in discovery.every("plugin") if found.value == entry.value), entry)
        there, options = self.setdefault(plugin.name, (plugin, {}))
        if there.value != plugin.value:
            both = " and ".join(f"{discovery.version(one)} ({one.value})" for one in (there, plugin))
            raise PluginConflict(f"plugin {plugin.name!r} is offered by {both}: uninstall one of them, or pass the plugin itself as an object")
        return options

    def once(self, entry: EntryPoint) -> None:
        """For a plugin given by its name."""
        if entry.name in self:
            raise PluginConflict(f"plugin {entry.name} is active twice; pass it once")
        self.options_of(entry)


def _refuse_options_of_another_strategy(named: Named, wanted: Wanted, chosen: EntryPoint | None) -> None:
    """An option brings its plugin; where that is another strategy than the one that is there, the option is what is wrong."""
    strategies = [name for name, plugin in named if "strategy" in getattr(plugin, "owns", ())]
    by_option = [name for name in strategies if name in wanted and wanted[name][1] and (chosen is None or wanted[name][0].value != chosen.value)]
    if len(strategies) > 1 and by_option:
        name, options = by_option[0], ", ".join(wanted[by_option[0]][1])
        other = next(one for one in strategies if one != name)
        raise UsageError(f"{options}: an option of strategy={name!r}, and the strategy here is {other!r}: leave it out, or say strategy={name!r}")


def _companions(named: Named, more: tuple[str, ...]) -> Named:
    """Plugins that come along where they are installed: others' ``companions``, those that do the work for any logger, and
    those for a module that the script has imported."""
    names = [*more, *(name for _, plugin in named for name in getattr(plugin, "companions", ()))]
    for name in names:
        discovery.refuse_contested("plugin", name)
    imported = [entry.value for entry in discovery.every("companion") if entry.name in sys.modules]
    entries = [entry for entry in discovery.every("plugin") if entry.name in names or entry.value in imported]
    active = {type(plugin) for _, plugin in named}
    return [(entry.name, _make(entry, {}, named)) for entry in entries if discovery.load(entry) not in active]


def make(entry: EntryPoint, **options: Any) -> object:
    """Import and instantiate a plugin by its entry point."""
    return _make(entry, options, [])


def _takes(strategy: EntryPoint, option: str) -> bool:
    """Whether the chosen strategy has an option of that name, which another one may have too."""
    maker = discovery.load(strategy)
    return callable(maker) and option in inspect.signature(maker).parameters


def _given(plugin: object) -> tuple[str, object]:
    return type(plugin).__name__, plugin


def _make(entry: EntryPoint, options: dict[str, Any], given: Named) -> object:
    maker = discovery.load(entry)
    if isinstance(maker, type) and options and any(type(plugin) is maker for _, plugin in given):
        raise PluginConflict(f"{maker.__name__}(...) was passed, and {', '.join(options)} beside it: pass them to {maker.__name__}(...)")
    if not callable(maker):
        return maker
    try:
        return maker(**options)
    except UsageError:
        raise
    except Exception as error:
        raise PluginError(f"plugin {entry.name} ({discovery.version(entry)}) could not be created: {error!r}") from error
