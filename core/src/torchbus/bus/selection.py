"""Resolves the arguments of ``session(...)`` to plugin objects."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from torchbus.bus import discovery
from torchbus.bus import options as torchbus_options
from torchbus.errors import PluginConflict, PluginError, UsageError

Named = list[tuple[str, object]]


def bring_a_strategy(plugins: Iterable[object]) -> bool:
    """Whether one of these objects and names, or of their companions, is a strategy."""
    known = discovery.installed("plugin")
    given = [
        discovery.load(discovery.find("plugin", one)) if isinstance(one, str) else one
        for one in plugins
    ]
    names = {name for one in given for name in getattr(one, "companions", ())}
    given += [discovery.load(known[name]) for name in names & known.keys()]
    return any("strategy" in getattr(one, "owns", ()) for one in given)


def default_strategy() -> str:
    """Return the strategy of several ranks: the one that a package declares as the usual one."""
    declared = discovery.installed("default").get("strategy")
    return declared.value if declared else discovery.distributions("default")["strategy"]


def resolve(
    plugins: tuple[object, ...],
    strategy: object,
    core_options: Mapping[str, object],
    options: Mapping[str, object],
) -> Named:
    """Return plugin objects with their names.

    These are the given plugins, the strategy, the loggers, and the owners of the options.
    """
    logger = core_options["logger"]
    objects = [plugin for plugin in plugins if not isinstance(plugin, str)]
    for plugin in objects:
        torchbus_options.refuse_no_plugin(plugin)
    named: Named = [(type(plugin).__name__, plugin) for plugin in objects]
    wanted = Wanted()
    for name in [plugin for plugin in plugins if isinstance(plugin, str)]:
        wanted.once(discovery.find("plugin", name))
    chosen = _strategy(strategy, options) if isinstance(strategy, str) else None
    if chosen is not None:
        wanted.options_of(chosen)
    elif strategy is not None:
        torchbus_options.refuse_no_plugin(strategy, "strategy")
        named.append((type(strategy).__name__, strategy))
    loggers = logger if isinstance(logger, list | tuple) else [logger]
    loggers = ["local" if one is True else one for one in loggers if one not in (None, False)]
    for one in loggers:
        if isinstance(one, str):
            wanted.options_of(discovery.find("logger", one))
        else:
            torchbus_options.refuse_no_plugin(one, "logger")
            named.append((type(one).__name__, one))
    for name, value in options.items():
        wanted.options_of(_owner(name, chosen, tuple(core_options)))[name] = value
    named += [(name, _make(entry, given, named)) for name, (entry, given) in wanted.items()]
    _refuse_options_of_another_strategy(named, wanted, chosen)
    serving = [entry.value for entry in discovery.every("default") if entry.name == "logger"]
    return named + _companions(named, tuple(serving) if loggers else ())


def expand_preset(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call, completed by those that its strategy's name stands for."""
    name = given["strategy"]
    preset = discovery.installed("preset").get(name) if isinstance(name, str) else None
    return given if preset is None else dict(discovery.load(preset).session_options(given))


def _strategy(name: str, options: Iterable[str]) -> EntryPoint:
    """Return the strategy of that name, or the one that is declared for it with an option."""
    combinations = discovery.installed("combination")
    known = [combinations.get(f"{name}+{option}") for option in options]
    return next(filter(None, known), None) or discovery.find("strategy", name, ("auto",))


class Wanted(dict[str, tuple[EntryPoint, dict[str, object]]]):
    """The installed plugins that a call selects, by name, with the options of each.

    Several entry points may name one plugin.
    """

    def options_of(self, entry: EntryPoint) -> dict[str, object]:
        """Return the options of a plugin, which the caller may add to.

        Raises PluginConflict if the call also wants a plugin of that name from another package.
        """
        plugin = next(
            (found for found in discovery.every("plugin") if found.value == entry.value), entry
        )
        there, options = self.setdefault(plugin.name, (plugin, {}))
        if there.value != plugin.value:
            both = " and ".join(
                f"{discovery.version(one)} ({one.value})" for one in (there, plugin)
            )
            raise PluginConflict(
                f"plugin {plugin.name!r} is offered by {both}: uninstall one of them, or pass the"
                " plugin itself as an object"
            )
        return options

    def once(self, entry: EntryPoint) -> None:
        """Add a plugin that is given by its name."""
        if entry.name in self:
            raise PluginConflict(f"plugin {entry.name} is active twice; pass it once")
        self.options_of(entry)


def _refuse_options_of_another_strategy(
    named: Named, wanted: Wanted, chosen: EntryPoint | None
) -> None:
    """Raise UsageError for an option that belongs to another strategy than the session's.

    An option activates its plugin, so there would be two strategies. The message names the option.
    """
    strategies = [name for name, plugin in named if "strategy" in getattr(plugin, "owns", ())]
    if chosen is None:
        _refuse_options_of_no_strategy([name for name in strategies if name in wanted], wanted)
    itself = [plugin for name, plugin in named if chosen is not None and name == chosen.name]
    along = {name for plugin in itself for name in getattr(plugin, "companions", ())}
    by_option = [
        name
        for name in strategies
        if name in wanted
        and wanted[name][1]
        and (chosen is None or wanted[name][0].value != chosen.value)
        and name not in along
    ]
    if by_option and (chosen is not None or len(strategies) > 1):
        name, options = by_option[0], ", ".join(wanted[by_option[0]][1])
        other = chosen.name if chosen else next(one for one in strategies if one != name)
        raise UsageError(
            f"{options}: an option of strategy={name!r}, and the strategy here is {other!r}: leave"
            f" it out, or pass strategy={name!r}"
        )


def _refuse_options_of_no_strategy(unasked: list[str], wanted: Wanted) -> None:
    """Raise UsageError for an option of one of these strategies, unless it is the default one."""
    usual = [entry.value for entry in discovery.every("default") if entry.name == "strategy"]
    for name in [name for name in unasked if name not in usual and wanted[name][1]]:
        options = ", ".join(wanted[name][1])
        hints = [discovery.hint("option", option) for option in wanted[name][1]]
        raise UsageError(
            f"{options}: an option of strategy={name!r}: pass strategy={name!r}, or leave it out"
            + "".join(f" ({hint})" for hint in hints if hint)
        )


def _companions(named: Named, more: tuple[str, ...]) -> Named:
    """Return the installed plugins to activate with the given ones.

    These are their ``companions``, the plugins named in ``more``, and those for a module that the
    script has imported.
    """
    names = [*more, *(name for _, plugin in named for name in getattr(plugin, "companions", ()))]
    imported = [entry.value for entry in discovery.every("companion") if entry.name in sys.modules]
    return _not_active(names, imported, [type(plugin) for _, plugin in named])


def companions_of(module: str, active: Sequence[type]) -> Named:
    """Return the plugins to activate with an imported module, without the active ones."""
    wanted = [entry.value for entry in discovery.every("companion") if entry.name == module]
    return _not_active((), wanted, active)


def with_companions(entry: EntryPoint, active: Sequence[type]) -> Named:
    """Return the plugin behind an entry point, and those of its companions that are not active."""
    wanted = Wanted()
    wanted.options_of(entry)
    named: Named = [(name, _make(one, {}, [])) for name, (one, _) in wanted.items()]
    return named + _not_active(getattr(named[0][1], "companions", ()), (), active)


def _not_active(names: Sequence[str], values: Sequence[str], active: Sequence[type]) -> Named:
    """Return the installed plugins of these names and values, unless they are active."""
    for name in names:
        discovery.refuse_contested("plugin", name)
    return [
        (entry.name, _make(entry, {}, []))
        for entry in discovery.every("plugin")
        if (entry.name in names or entry.value in values) and discovery.load(entry) not in active
    ]


def _owner(option: str, chosen: EntryPoint | None, core: tuple[str, ...]) -> EntryPoint:
    """Return the plugin that an option belongs to: the chosen strategy before all others."""
    if chosen is not None:  # another plugin may have an option of that name, too
        maker = discovery.load(chosen)
        if callable(maker) and option in inspect.signature(maker).parameters:
            return chosen
    return discovery.find("option", option, core)


def _make(entry: EntryPoint, options: dict[str, object], given: Named) -> object:
    maker = discovery.load(entry)
    if isinstance(maker, type) and options and any(type(plugin) is maker for _, plugin in given):
        raise PluginConflict(
            f"{maker.__name__}(...) was passed, and {', '.join(options)} beside it: pass them to"
            f" {maker.__name__}(...)"
        )
    if not callable(maker):
        return maker
    try:
        return maker(**options)
    except UsageError:
        raise
    except Exception as error:
        raise PluginError(
            f"plugin {entry.name} ({discovery.version(entry)}) could not be created: {error!r}"
        ) from error
