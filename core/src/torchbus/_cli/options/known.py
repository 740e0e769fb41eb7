"""All options of ``session``, read from the constructors of the installed plugins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from torchbus._bus import discovery
from torchbus._cli.options import kinds
from torchbus.errors import PluginError
from torchbus.session import Session


@dataclass(frozen=True)
class Option:
    """One option. ``kind``: its type. ``modules``: those that the type's text names."""

    name: str
    kind: str
    default: str
    package: str
    plugin: str
    words: str
    modules: frozenset[str] = field(default=frozenset(), repr=False)


def known_options() -> list[Option]:
    """Return the session's own options, and then those of plugins by package and name.

    If several strategies have an option of the same name, all of them are listed.
    """
    own = [_option(name, Session, "torchbus", "session") for name in _parameters(Session)]
    offered = {entry.name for entry in discovery.every("option")}
    found = [
        _option(name, maker, _package(entry), _plugin(entry))
        for entry, maker in _makers()
        for name in _parameters(maker)
        if name in offered
    ]
    return own + sorted(found, key=lambda one: (one.package, one.plugin, one.name))


def _makers() -> Iterator[tuple[EntryPoint, Callable[..., object]]]:
    """Return what makes plugins that have options, each once.

    Leave out what can't be imported: `torchbus plugins` says why.
    """
    entries = {one.value: one for kind in ("strategy", "option") for one in discovery.every(kind)}
    for entry in entries.values():
        with suppress(PluginError):
            maker = discovery.load(entry)
            if callable(maker):
                yield entry, maker


def _option(name: str, maker: Callable[..., object], package: str, plugin: str) -> Option:
    function = _constructor(maker, name)
    parameter = inspect.signature(function).parameters[name]
    modules: set[str] = set()
    kind = kinds.text(kinds.of_parameter(function, parameter), modules)
    default = parameter.default
    shown = "" if default is inspect.Parameter.empty else repr(default)
    return Option(name, kind, shown, package, plugin, _words(maker, name), frozenset(modules))


def _parameters(maker: Callable[..., object]) -> Iterator[str]:
    for name, one in inspect.signature(maker).parameters.items():
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
            yield name


def _constructor(maker: Any, name: str) -> Callable[..., object]:
    """Return the function that has the parameter: a class inherits its constructor."""
    found: Callable[..., object] = maker.__init__ if isinstance(maker, type) else maker  # type: ignore[misc]
    return found


def _words(maker: object, name: str) -> str:
    """Return what the docstring of the maker, or of a class that it inherits from, says of it."""
    for one in getattr(maker, "__mro__", (maker,)):
        found = re.search(
            rf"^    (?:\w+, )*{name}(?:, \w+)*: (.+(?:\n     +.+)*)",
            inspect.cleandoc(one.__doc__ or ""),
            re.M,
        )
        if found:
            return " ".join(found[1].split())
    return ""


def _package(entry: EntryPoint) -> str:
    return discovery.version(entry).partition(" ")[0]


def _plugin(entry: EntryPoint) -> str:
    return next((one.name for one in discovery.every("plugin") if one.value == entry.value), "")
