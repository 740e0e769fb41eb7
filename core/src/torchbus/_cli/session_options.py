"""The options of commands that put a session around a script."""

from __future__ import annotations

import argparse
import ast
import difflib
from pathlib import Path
from typing import Any

from torchbus._bus import discovery
from torchbus._bus.options import CORE_OPTIONS
from torchbus._cli import program
from torchbus._cli.config import Config
from torchbus._cli.parser import Parser
from torchbus._cli.program import Program
from torchbus.errors import PluginNotInstalled, TorchbusError, UsageError
from torchbus.session import Session


def program_and_session(parser: Parser, argv: list[str]) -> tuple[Program, Session]:
    """Return the script that a command names, and the session that it wants around it.

    ``parser`` comes from ``session_parser``. Raises TorchbusError, and SyntaxError of the script.
    """
    given = vars(parser.parse(argv))
    words = given.pop("program")
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        parser.error(f"which script? write {parser.prog} [OPTION]... SCRIPT [ARG]...")
    found = find(*words, by_module=given.pop("module"))
    return found, session_of(given)


def find(name: str, *args: str, by_module: bool) -> Program:
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
    return _by_config(Config(path), plugins, given | options)


def _by_config(config: Config, plugins: list[str], given: dict[str, object]) -> Session:
    more = [name for name in config.plugins if name not in plugins]
    try:
        return Session(*plugins, *more, config, **config.merged(given))
    except TorchbusError as error:
        raise type(error)(f"{error}{config.blames(error)}") from error


class SessionParser(Parser):
    """Says how options of plugins are written, which have no ``--name`` of their own."""

    def unknown(self, word: str, following: str) -> str:
        name, _, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        told = super().unknown(word, following)
        if name in CORE_OPTIONS or not difflib.get_close_matches(word, self.flags(), 1, 0.8):
            try:
                if name not in CORE_OPTIONS:
                    discovery.find("option", name, CORE_OPTIONS)
                return f"{word!r} is written -o {name}={value or following or '...'}"
            except PluginNotInstalled as error:
                return str(error)
            except UsageError as error:
                return f"{error}; options of plugins are written -o NAME=VALUE"
        return told


def session_parser(command: str, description: str, examples: str, usage: str) -> Parser:
    """Of a command that takes the options of a session, a script and its arguments."""
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
"""They become arguments of ``session(...)``. What is not said is left out."""


def add_session_options(parser: Parser) -> None:
    group = parser.add_argument_group("options of the session")
    for flags, keywords in OPTIONS.items():
        group.add_argument(*flags, **keywords)
