"""The argument parser of all commands, with the tables and errors that they print."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NoReturn

from torchbus.plugin import TorchbusError, UsageError

from torchbus_redaction.redactor import Redactor

FIND = "--torchbus-find-parser"


class ParserFound(Exception):
    """Carries the parser of a command to ``torchbus completion``, which calls it with ``FIND``."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """The parser of one command, whose help ends with ``examples``."""

    def __init__(self, command: str, description: str, examples: str, **options: Any) -> None:
        super().__init__(
            f"torchbus {command}",
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parse the words; the error for an unknown option suggests similar options.

        Raises ParserFound, which ends the command, if ``argv`` asks only for the parser.
        """
        if argv == [FIND]:
            raise ParserFound(self)
        given, unknown = self.parse_known_args(argv)
        if unknown:
            following = argv[argv.index(unknown[0]) + 1 :] if unknown[0] in argv else []
            self.error(self.unknown(unknown[0], following[0] if following else ""))
        return given

    def unknown(self, word: str, following: str) -> str:
        """Return the error for a word that the command does not take."""
        near = difflib.get_close_matches(word, self.flags(), 3)
        return f"unknown option {word!r}" + (f": did you mean {' or '.join(near)}?" if near else "")

    def flags(self) -> list[str]:
        """Return the long options, each once."""
        return list(dict.fromkeys(re.findall(r"--[a-z][a-z-]+", self.format_help())))

    def error(self, message: str) -> NoReturn:
        """End the command with exit status 2 and one line."""
        self.exit(2, f"{self.prog}: {Redactor().values(message)} (see {self.prog} --help)\n")


def complain(command: str, error: TorchbusError) -> int:
    """Print an error in one line; return the exit status, which is 2 for a UsageError, else 1."""
    print(f"{command}: {Redactor().values(str(error))}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


GAP = "  "
NARROWEST = 16


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns that fit the terminal, or 100 columns without a terminal.

    The first column names the row and never wraps. The widest other columns wrap first.
    """
    widths = _fitting([max(map(len, column)) for column in zip(*rows, strict=True)])
    return "\n".join(line for row in rows for line in _lines(row, widths))


def _fitting(widths: list[int]) -> list[int]:
    room = max(60, min(shutil.get_terminal_size((100, 24)).columns, 120))
    while sum(widths) + len(GAP) * (len(widths) - 1) > room and max(widths[1:]) > NARROWEST:
        widths[widths.index(max(widths[1:]), 1)] -= 1
    return widths


def _lines(row: Sequence[str], widths: list[int]) -> list[str]:
    cells = [
        textwrap.wrap(cell, width, break_on_hyphens=False)
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = zip_longest(*cells, fillvalue="")
    return [
        GAP.join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
