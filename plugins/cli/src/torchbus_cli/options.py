"""``torchbus options``: the options of all installed plugins, with their types as text."""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from torchbus.bus import discovery
from torchbus.plugin import PluginError, TorchbusError
from torchbus.session import Session

from torchbus_cli.parser import Parser, complain, table


def text(annotation: object, modules: set[str]) -> str:
    """Return the text of a type, and add its modules to ``modules``. Other types become Any."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if isinstance(annotation, list):  # the arguments of a Callable
        return f"[{_listed(annotation, modules)}]"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        there = [one for one in arguments if one is not typing.NoReturn]
        return " | ".join(text(one, modules) for one in there)
    if origin is typing.Literal:
        modules.add("typing")
        return f"typing.Literal[{', '.join(map(json.dumps, arguments))}]"
    if origin is not None:
        return f"{_name(origin, modules)}[{_listed(arguments, modules)}]"
    return _name(annotation, modules)


def _listed(annotations: typing.Iterable[object], modules: set[str]) -> str:
    return ", ".join(text(one, modules) for one in annotations)


def _name(kind: object, modules: set[str]) -> str:
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")
    if module == "builtins":
        return str(name)
    public = _public(module, name, kind)
    if not public:
        module, name = "typing", "Any"
    modules.add(public or module)
    return f"{public or module}.{name}"


def _public(module: str, name: str, kind: object) -> str:
    """Return the outermost package in which the class has the name ``name``, or ""."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        owner = ".".join(parts[:count])
        if isinstance(kind, type) and getattr(sys.modules.get(owner), name, None) is kind:
            return owner
    return ""


def of_parameter(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    """Return a parameter's type, or ``typing.Any`` if there is none, or its names are not found."""
    written = parameter.annotation
    if written is inspect.Parameter.empty:
        return Any
    if not isinstance(written, str):
        return written
    body = inspect.unwrap(function)
    try:
        return eval(written, dict(vars(sys.modules[body.__module__])))
    except (NameError, AttributeError, TypeError):
        return Any


@dataclass(frozen=True)
class Option:
    """One option. ``kind`` is the text of its type, and ``modules`` the modules in that text."""

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
    mine = [_option(name, Session, "torchbus", "session") for name in _parameters(Session)]
    offered = {entry.name for entry in discovery.every("option")}
    found = [
        _option(name, maker, _package(entry), _plugin(entry))
        for entry, maker in _makers()
        for name in _parameters(maker)
        if name in offered
    ]
    return mine + sorted(found, key=lambda one: (one.package, one.plugin, one.name))


def _makers() -> Iterator[tuple[EntryPoint, Callable[..., object]]]:
    """Yield the classes and factories of plugins that have options, each once.

    Those that can't be imported are left out; `torchbus plugins` says why.
    """
    entries = {one.value: one for kind in ("strategy", "option") for one in discovery.every(kind)}
    for entry in entries.values():
        with suppress(PluginError):
            maker = discovery.load(entry)
            if callable(maker):
                yield entry, maker


def _option(name: str, maker: Callable[..., object], package: str, plugin: str) -> Option:
    made: Any = maker
    # a class inherits its constructor
    function: Callable[..., object] = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]
    parameter = inspect.signature(function).parameters[name]
    modules: set[str] = set()
    kind = text(of_parameter(function, parameter), modules)
    default = parameter.default
    shown = "" if default is inspect.Parameter.empty else repr(default)
    return Option(name, kind, shown, package, plugin, _meaning(maker, name), frozenset(modules))


def _parameters(maker: Callable[..., object]) -> Iterator[str]:
    for name, one in inspect.signature(maker).parameters.items():
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
            yield name


def _meaning(maker: object, name: str) -> str:
    """Return an option's description from the docstring of its maker, or of a base class."""
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


DESCRIPTION = """Print what session(...) takes here: the session's own options, and those of the
installed plugins. `torchbus run` takes the same ones.
"""
EXAMPLES = """  torchbus options
  torchbus options precision
  torchbus options --json | python -m json.tool
"""
FIELDS = ("name", "kind", "default", "package", "plugin", "words")


def main(argv: list[str]) -> int:
    """Print the options of session(...): type, default, package and meaning."""
    parser = Parser("options", DESCRIPTION, EXAMPLES)
    parser.add_argument("name", nargs="?", help="only this option")
    parser.add_argument("--json", action="store_true", help="print a JSON list of objects")
    given = parser.parse(argv)
    found = [one for one in known_options() if given.name in (None, one.name)]
    if not found:
        try:
            discovery.find("option", given.name, tuple(one.name for one in known_options()))
        except TorchbusError as error:
            return complain("torchbus options", error)
    if given.json:
        reported = [{key: asdict(one)[key] for key in FIELDS} for one in found]
        print(json.dumps(reported, indent=2))
        return 0
    print("\n\n".join(map(_whole, found)) if given.name else table([HEAD, *map(_row, found)]))
    return 0


HEAD = ("OPTION", "DEFAULT", "PLUGIN", "MEANING")


def _row(one: Option) -> tuple[str, str, str, str]:
    return one.name, one.default, one.plugin, one.words


def _whole(one: Option) -> str:
    lines = [f"{one.name}: {one.kind} = {one.default}", f"of {one.plugin} ({one.package})"]
    return "\n".join([*lines, one.words] if one.words else lines)
