"""``torchbus completion``: prints a shell's completion script, which shtab writes."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from typing import Any

from torchbus.bus import discovery
from torchbus.compat.python import arguments_of
from torchbus.plugin import PluginError, TorchbusError
from torchbus.session import CORE_OPTIONS

from torchbus_cli import parser
from torchbus_cli.parser import Parser, complain

DESCRIPTION = """Print a script that completes commands, options, names of plugins and files of
torchbus in a shell. Print it again when packages come or go.
"""
EXAMPLES = """  torchbus completion bash > ~/.local/share/bash-completion/completions/torchbus
  torchbus completion zsh > ~/.zsh/completions/_torchbus
"""
FILES = ("program", "config")


def main(argv: list[str]) -> int:
    """Print a completion script for bash, zsh or tcsh."""
    parser = Parser("completion", DESCRIPTION, EXAMPLES)
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    given = parser.parse(argv)
    try:
        shtab = _shtab()
    except TorchbusError as error:
        return complain("torchbus completion", error)
    print(shtab.complete(_everything(shtab), shell=given.shell, root_prefix="torchbus"))
    return 0


def _shtab() -> Any:
    try:
        return importlib.import_module("shtab")
    except ModuleNotFoundError:
        raise PluginError("completion scripts are written by shtab: pip install shtab") from None


def _everything(shtab: object) -> argparse.ArgumentParser:
    """Return one parser with all commands."""
    from torchbus_cli.main import commands

    root = argparse.ArgumentParser("torchbus")
    root.add_argument("--version", action="store_true", help="print the version")
    subparsers = root.add_subparsers()
    for entry in commands():
        parser = _parser(entry)
        if parser is None:
            subparsers.add_parser(entry.name, help=entry.name)
            continue
        _complete(parser, shtab)
        summary = (parser.description or "").partition("\n\n")[0]
        subparsers.add_parser(entry.name, parents=[parser], add_help=False, help=summary)
    return root


def _parser(entry: Any) -> Parser | None:
    """Return the parser of a command; None if it makes none, or can't be imported."""
    try:
        discovery.load(entry)([parser.FIND])
    except parser.ParserFound as found:
        return found.parser
    except PluginError:
        return None
    return None


def _complete(parser: argparse.ArgumentParser, shtab: object) -> None:
    """Complete the values of options."""
    names: dict[str, Iterable[str]] = {
        "strategy": (
            *discovery.installed("strategy"),
            *discovery.installed("preset"),
            *("auto", "None"),
        ),
        "logger": discovery.installed("logger"),
        "plugins": discovery.installed("plugin"),
        "options": [f"{name}=" for name in (*CORE_OPTIONS, *discovery.installed("option"))],
        "accelerator": ("auto", "cpu", "gpu"),
    }
    for action in arguments_of(parser):
        if action.dest in names:
            action.choices = sorted(names[action.dest])
        elif action.dest in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
