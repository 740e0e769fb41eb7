"""The entry point ``torchbus COMMAND ...``: finds the command and calls it.

Commands are entry points of the group ``torchbus.command``. Each names a function that takes the
words after the command and returns the exit status. ``torchbus --help`` prints the first line of
the function's docstring.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import EntryPoint

import torchbus
from torchbus.bus import discovery
from torchbus.plugin import PluginError, TorchbusError, UsageError

from torchbus_cli.parser import complain, table

BUILT_IN = {
    name: EntryPoint(name, f"torchbus_cli.{module}:main", "torchbus.command")
    for name, module in (
        ("run", "session_options"),
        ("plugins", "plugins"),
        ("doctor", "doctor"),
        ("options", "options"),
        ("stubs", "stubs"),
        ("completion", "completion"),
        ("new-plugin", "scaffold"),
    )
}
HELP = """usage: torchbus COMMAND ...

One line around your own PyTorch training loop; with `torchbus run`, not even that.

commands:
{commands}

`torchbus COMMAND --help` explains a command, with examples.
`torchbus --version` prints the version."""


def main(argv: list[str] | None = None) -> int:
    """Run a command for the console script or ``python -m torchbus``; return the exit status."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "run":  # the script may handle a closed pipe itself
        return _run(name, arguments)
    try:
        try:
            return _run(name, arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has left, as in `torchbus plugins | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help"):
        print(
            HELP.format(
                commands=table([(f"  {entry.name}", _summary(entry)) for entry in commands()])
            )
        )
        return 0
    if name in ("-V", "--version"):
        print(f"torchbus {torchbus.__version__}")
        return 0
    if name.startswith("-"):
        return complain(
            "torchbus",
            UsageError(
                f"{name} is not a command: options come after it, as in torchbus run --devices 2"
                " train.py"
            ),
        )
    try:
        command = discovery.load(
            BUILT_IN.get(name) or discovery.find("command", name, tuple(BUILT_IN))
        )
    except TorchbusError as error:
        return complain("torchbus", error)
    return int(command(arguments) or 0)


def commands() -> list[EntryPoint]:
    """Return the entry points of all commands, the core's first."""
    return [
        *BUILT_IN.values(),
        *(entry for name, entry in discovery.installed("command").items() if name not in BUILT_IN),
    ]


def _summary(entry: EntryPoint) -> str:
    try:
        text = discovery.load(entry).__doc__ or discovery.version(entry)
    except PluginError as error:
        text = str(error)
    return str(text).strip().splitlines()[0]
