"""``torchbus stubs``: type stubs with the options and verbs of the installed plugins."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from torchbus.bus import discovery

from torchbus_cli import options
from torchbus_cli.options import Option, known_options
from torchbus_cli.parser import Parser

KNOWN = '''\
"""The options of this repository's packages, for type checkers and editors.

{written}
"""

from __future__ import annotations

{imports}

from torchbus.installed import MoreOptions

{strategies}
{loggers}


class KnownOptions(MoreOptions, total=False):
    """What ``session`` takes beside its own options."""

{options}
'''
INSTALLED = '''\
"""{written}"""

{imports}

{strategies}
{loggers}

class MoreOptions(typing.TypedDict, total=False):
{options}

class MoreVerbs:
{verbs}
'''
ELLIPSIS = "    ..."


def known_text(options: Iterable[Option], names: Names, written: str) -> str:
    """Return the module of ``KnownOptions``, which the core ships."""
    members, modules = _options(options)
    return KNOWN.format(
        written=written,
        imports=imports({"typing", *modules}),
        options=members,
        strategies=_literal("StrategyName", names["strategy"]),
        loggers=_literal("LoggerName", names["logger"]),
    )


def installed_text(
    options: Iterable[Option], names: Names, verbs: Mapping[str, object], written: str
) -> str:
    """Return the stub of ``torchbus.installed``. ``verbs`` has the plugin of each verb."""
    members, modules = _options(options)
    methods = [_verb(name, maker, modules) for name, maker in sorted(verbs.items())]
    return INSTALLED.format(
        written=written,
        imports=imports({"typing", *modules}),
        options=members or ELLIPSIS,
        verbs=textwrap.indent("".join(methods), "    ").rstrip() or ELLIPSIS,
        strategies=_literal("MoreStrategies", names["strategy"]),
        loggers=_literal("MoreLoggers", names["logger"]),
    )


def _options(options: Iterable[Option]) -> tuple[str, set[str]]:
    """Return the members of a TypedDict, and the modules that they name.

    An option of several strategies has the union of their types.
    """
    texts: dict[str, dict[str, None]] = {}
    modules: set[str] = set()
    for one in options:
        texts.setdefault(one.name, {}).setdefault(one.kind)
        modules |= one.modules
    lines = [_wrapped(f"    {name}: ", _union(texts[name])) for name in sorted(texts)]
    return "\n".join(lines), modules


def _union(texts: Iterable[str]) -> str:
    """Join types, each once, with None at the end."""
    each = list(texts)
    plain = list(dict.fromkeys(text.removesuffix(" | None") for text in each))
    return " | ".join([*plain, "None"] if plain != each and _takes_none(each) else plain)


def _takes_none(texts: Iterable[str]) -> bool:
    return any(text.endswith(" | None") for text in texts)


def _literal(alias: str, names: Iterable[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return _wrapped(f"{alias} = ", f"typing.Literal[{listed}]" if listed else "typing.NoReturn")


def _wrapped(head: str, kind: str) -> str:
    """Write a literal of many names, or a long union, on a line for each part."""
    indent = " " * (len(head) - len(head.lstrip()))
    if len(head + kind) <= COLUMNS:
        return head + kind
    if (union := kind.split(" | "))[1:]:
        lines = [f"{indent}    {'| ' * bool(place)}{one}" for place, one in enumerate(union)]
        return "\n".join([f"{head}(", *lines, f"{indent})"])
    if not kind.startswith("typing.Literal["):
        return head + kind
    names = kind.partition("[")[2].rstrip("]").split(", ")
    lines = [f"{head}typing.Literal[", *(f"{indent}    {name}," for name in names)]
    return "\n".join([*lines, f"{indent}]"])


def imports(modules: Iterable[str]) -> str:
    """Return import statements: Python's own modules, a blank line, and others."""
    by_owner: dict[bool, list[str]] = {True: [], False: []}
    for one in sorted(modules):
        by_owner[one.partition(".")[0] in sys.stdlib_module_names].append(f"import {one}")
    return "\n\n".join("\n".join(lines) for lines in by_owner.values() if lines)


Names = Mapping[str, Iterable[str]]
KINDS = {"strategy": ("strategy", "preset"), "logger": ("logger",)}
"""The groups of entry points that name the values of an option."""
COLUMNS = 100
STARS: dict[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def _verb(name: str, maker: object, modules: set[str]) -> str:
    member = inspect.getattr_static(maker, name, None)
    if isinstance(member, property) and member.fget is not None:
        returns = _returned(member.fget, modules)
        return f"@property\ndef {name}(self) -> {returns}: ...\n"
    if not callable(member):
        return f"{name}: typing.Any\n"
    function: Any = member
    parameters: list[str] = []
    for one in inspect.signature(function).parameters.values():
        kind = options.text(options.of_parameter(function, one), modules)
        star = STARS.get(one.kind, "")
        if one.kind == one.KEYWORD_ONLY and not any(word.startswith("*") for word in parameters):
            parameters.append("*")
        default = "" if one.default is one.empty or star else " = ..."
        parameters.append("self" if one.name == "self" else f"{star}{one.name}: {kind}{default}")
    return f"def {name}({', '.join(parameters)}) -> {_returned(function, modules)}: ...\n"


def _returned(function: Any, modules: set[str]) -> str:
    """Return the text of a function's return type, or ``typing.Any`` for a context manager."""
    result = inspect.signature(function).return_annotation
    parameter = inspect.Parameter("result", inspect.Parameter.KEYWORD_ONLY, annotation=result)
    if hasattr(function, "__wrapped__"):
        return "typing.Any"
    return options.text(options.of_parameter(function, parameter), modules)


DESCRIPTION = """Give type checkers and editors the types of the plugins that are installed here.

torchbus has types for its own plugins. For those of others, this command writes the partial stub
package torchbus-stubs (PEP 561) into the environment, which mypy and pyright find automatically.
Run it again after installing or removing plugins; delete the folder to undo it.
"""
EXAMPLES = """  torchbus stubs
  torchbus stubs --to .venv/lib/python3.12/site-packages
"""
OURS = {
    "torchbus",
    *(name for kind in discovery.KINDS for name in discovery.distributions(kind).values()),
}
WRITTEN = "Written by `torchbus stubs` from the installed plugins."


def main(argv: list[str]) -> int:
    """Write types of the installed plugins for mypy, pyright and editors."""
    parser = Parser("stubs", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--to", type=Path, default=Path(sysconfig.get_paths()["purelib"]), help="the folder"
    )
    folder = parser.parse(argv).to / "torchbus-stubs"
    try:
        write(folder)
    except OSError as error:
        parser.error(f"{folder} can't be written: {error.strerror}; name a folder with --to")
    print(f"written: {folder}")
    return 0


def write(folder: Path) -> None:
    """Write the stub package."""
    names = {
        kind: [
            name
            for one in kinds
            for name, entry in discovery.installed(one).items()
            if _is_of_others(entry)
        ]
        for kind, kinds in KINDS.items()
    }
    verbs = {
        name: discovery.load(entry)
        for name, entry in discovery.installed("verb").items()
        if _is_of_others(entry)
    }
    options = [one for one in known_options() if one.package not in OURS]
    texts = {
        "py.typed": "partial\n",
        "installed.pyi": installed_text(options, names, verbs, WRITTEN),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _is_of_others(entry: EntryPoint) -> bool:
    return discovery.version(entry).partition(" ")[0] not in OURS
