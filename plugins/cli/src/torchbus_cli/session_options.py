"""``torchbus run``: session options from the command line and from a TOML file."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchbus.bus import discovery
from torchbus.errors import PluginNotInstalled
from torchbus.plugin import PluginError, TorchbusError, UsageError, hookimpl
from torchbus.session import CORE_OPTIONS, Session

from torchbus_cli import programs as program
from torchbus_cli.parser import Parser, complain
from torchbus_cli.programs import MainProgram
from torchbus_device import accelerators
from torchbus_launch import config_file
from torchbus_launch.launched_rank import world_size_seen

USAGE = """torchbus run [OPTION]... SCRIPT [ARG]...
       torchbus run [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Run a training script on several devices without an edit: as
`python SCRIPT ARG...` does, but inside a session.

Put options before the script; everything after it goes to the script. The exit status is the
script's. The command forks the other ranks before the script begins, or starts them by running the
same command again. Only rank 0 prints.
"""
EXAMPLES = """  torchbus run train.py --lr 0.1              on all visible GPUs, or one rank on CPU
  torchbus run --devices 2 train.py           two ranks (strategy ddp)
  torchbus run --devices 0,2 -m pkg.train     GPUs 0 and 2, a module
  torchbus run --accelerator cpu --devices 4 --print-all-ranks train.py
  torchbus run --logger local -o log_dir=runs/a -o sync_loss=False train.py
  torchbus run --config run.toml train.py     options from a file
  torchbus run --verbose train.py             explains the session after the first epoch
"""


def main(argv: list[str]) -> int:
    """Run a training script on several devices without an edit."""
    parser = session_parser("run", DESCRIPTION, EXAMPLES, usage=USAGE)
    try:
        found, wanted = program_and_session(parser, argv)
        active = found.start(wanted)
    except SyntaxError as error:
        sys.excepthook(SyntaxError, error.with_traceback(None), None)
        return 1
    except TorchbusError as error:
        return complain("torchbus run", error)
    found.run(active)
    return 0


PLUGINS = "plugins"


class ConfigFile:
    """The options in a TOML file. Explains which of them the command line replaces.

    ``options`` has the values by name, and ``plugins`` the names of installed plugins.
    """

    def __init__(self, path: Path) -> None:
        """Read a file. Raises UsageError for invalid TOML, and for a key that is not an option."""
        self._path = path
        self.options = _read(path)
        self.plugins = self.options.pop(PLUGINS, [])
        if not isinstance(self.plugins, list) or {*map(type, self.plugins)} - {str}:
            raise UsageError(f"{path}: {PLUGINS} = {self.plugins!r}: it must be a list of names")
        for name in self.options:
            if name not in CORE_OPTIONS:
                self._find(name)
        self._overridden: dict[str, object] = {}

    def _find(self, name: str) -> None:
        try:
            discovery.find("option", name, (*CORE_OPTIONS, PLUGINS))
        except TorchbusError as error:
            if isinstance(self.options[name], dict):
                raise UsageError(
                    f"{self._path}: [{name}] is a table: options of the session are written without"
                    " one, as in devices = 2"
                ) from None
            raise type(error)(f"{self._path}: {error}") from None

    def merged(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return all options. Those of the command line replace those of the file."""
        self._overridden = {name: given[name] for name in self.options if name in given}
        return {**self.options, **given}

    def blames(self, error: TorchbusError) -> str:
        """Return a note for an error that names options of the file, or ""."""
        named = [
            name
            for name in self.options
            if name not in self._overridden and re.search(rf"\b{name}\b", str(error))
        ]
        return f" ({', '.join(named)}: from {self._path})" if named else ""

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        given = [
            f"{name}={value!r}"
            for name, value in self.options.items()
            if name not in self._overridden
        ]
        if self.plugins:
            given.append(f"{PLUGINS} {', '.join(self.plugins)}")
        lines = [f"from {self._path}: {', '.join(given) or 'nothing'}"]
        lines += [
            f"from the command line: {name}={value!r}, not {self.options[name]!r} of {self._path}"
            for name, value in self._overridden.items()
        ]
        return {"options": lines}


def _read(path: Path) -> dict[str, Any]:
    toml = _toml()
    try:
        found: dict[str, object] = toml.loads(config_file.read_text(path))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also of text, or of a number that is too long
        raise UsageError(
            f"{path} is not valid TOML, and no other format is read: {error}"
        ) from None
    return found


def _toml() -> Any:
    """Return Python's TOML parser, or the package from which it was made."""
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise PluginError(
            "Python 3.10 has no TOML parser, so --config needs tomli: pip install tomli"
        ) from None


def program_and_session(
    parser: Parser, argv: list[str], ranks_on_cpu: int | None = None
) -> tuple[MainProgram, Session]:
    """Return the script that a command names, and the session that it wants around it.

    ``parser`` comes from ``session_parser``. ``ranks_on_cpu`` is the number of ranks on a machine
    without an accelerator, unless an option or a launcher decides. Raises TorchbusError, and
    SyntaxError of the script.
    """
    given = vars(parser.parse(argv))
    if ranks_on_cpu is not None and _leaves_ranks_open({**given, **dict(given.get("options", []))}):
        given["devices"] = ranks_on_cpu
    script = given.pop("program")
    if script[:1] == ["--"]:
        del script[0]
    if not script:
        parser.error(f"which script? write {parser.prog} [OPTION]... SCRIPT [ARG]...")
    found = find(*script, by_module=given.pop("module"))
    return found, session_of(given)


def _leaves_ranks_open(given: Mapping[str, object]) -> bool:
    return (
        not {"devices", "accelerator", "config"} & given.keys()
        and given.get("strategy", "auto") is not None
        and accelerators.current() is None
        and world_size_seen() == 1
    )


def find(name: str, *args: str, by_module: bool) -> MainProgram:
    """Return what `python NAME ARG...` or `python -m NAME ARG...` would run."""
    found = program.from_module if by_module else program.from_file
    return found(name, list(args))


def session_of(given: dict[str, Any]) -> Session:
    """Return the session that the options of a command describe."""
    plugins, options = given.pop("plugins", []), dict(given.pop("options", []))
    twice = sorted(given.keys() & options.keys())
    if twice:
        raise UsageError(f"{twice[0]} is given twice, as an option of the command and by -o")
    path = given.pop("config", None)
    if path is None:
        return Session(*plugins, **given, **options)
    return _by_config(ConfigFile(path), plugins, given | options)


def _by_config(config: ConfigFile, plugins: list[str], given: dict[str, object]) -> Session:
    more = [name for name in config.plugins if name not in plugins]
    try:
        return Session(*plugins, *more, config, **config.merged(given))
    except TorchbusError as error:
        raise type(error)(f"{error}{config.blames(error)}") from error


class SessionParser(Parser):
    """The parser of ``torchbus run``, whose errors explain how to write options of plugins."""

    def unknown(self, word: str, following: str) -> str:
        name, _, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        reported = super().unknown(word, following)
        if name in CORE_OPTIONS or not difflib.get_close_matches(word, self.flags(), 1, 0.8):
            try:
                if name not in CORE_OPTIONS:
                    discovery.find("option", name, CORE_OPTIONS)
                return f"{word!r} is written -o {name}={value or following or '...'}"
            except PluginNotInstalled as error:
                return str(error)
            except UsageError as error:
                return f"{error}; options of plugins are written -o NAME=VALUE"
        return reported


def session_parser(command: str, description: str, examples: str, usage: str) -> Parser:
    """Return the parser of a command that takes options of a session, a script and arguments."""
    parser = SessionParser(
        command, description, examples, usage=usage, argument_default=argparse.SUPPRESS
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARG]...",
        help="the script and its arguments",
    )
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        default=False,
        help="SCRIPT is the name of a module, as with python -m",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a TOML file whose keys are options of the session; the command line wins",
    )
    add_session_options(parser)
    return parser


def option(text: str) -> tuple[str, object]:
    """Parse KEY=VALUE into a pair."""
    key, equals, value = text.partition("=")
    if not (equals and key.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, as in -o sync_loss=False")
    return key, literal(value)


def literal(text: str) -> object:
    """Return the value of a Python literal; any other text unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--strategy",): {
        "type": literal,
        "metavar": "S",
        "help": "ddp, another installed strategy, or None; auto: ddp for more than one device",
    },
    ("--devices",): {
        "type": literal,
        "metavar": "D",
        "help": "number of ranks on this node, or GPU numbers such as 1,3; -1 or auto: all GPUs",
    },
    ("--accelerator",): {"metavar": "A", "help": "auto, cpu, gpu or a device type such as xpu"},
    ("--num-nodes",): {
        "type": literal,
        "metavar": "N",
        "help": "number of machines; set MASTER_ADDR, MASTER_PORT and NODE_RANK on each",
    },
    ("--launch",): {
        "choices": ("auto", "script", "fork"),
        "help": (
            "start the other ranks by fork, or by running the command again; auto: fork if safe"
        ),
    },
    ("--prefetch",): {
        "type": literal,
        "metavar": "N",
        "help": "0: copy no batch to the device ahead",
    },
    ("--verbose",): {
        "action": "store_true",
        "help": "print explain() at the end of the first epoch",
    },
    ("--print-all-ranks",): {
        "action": "store_true",
        "help": "let every rank print, each line with its rank",
    },
    ("--logger",): {
        "type": literal,
        "action": "append",
        "metavar": "L",
        "help": "local, or another installed logger; may be repeated",
    },
    ("--plugin",): {
        "dest": "plugins",
        "action": "append",
        "metavar": "NAME",
        "help": "an installed plugin (see torchbus plugins); may be repeated",
    },
    ("-o", "--option"): {
        "dest": "options",
        "type": option,
        "action": "append",
        "metavar": "KEY=VALUE",
        "help": (
            "any other option of session() or of a plugin; a VALUE that is a Python literal is read"
            " as one, any other as a string"
        ),
    },
}
"""The flags of options, with their parser arguments. Only given ones are passed to ``session``."""


def add_session_options(parser: Parser) -> None:
    group = parser.add_argument_group("options of the session")
    for flags, keywords in OPTIONS.items():
        group.add_argument(*flags, **keywords)
