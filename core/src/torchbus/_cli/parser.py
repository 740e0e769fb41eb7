"""An argument parser whose errors are one line."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import Any, NoReturn

from torchbus.errors import TorchbusError, UsageError


class Parser(argparse.ArgumentParser):
    """The parser of one command; ``examples`` end its help."""

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
        """Parse the words; the error for an unknown option suggests similar options."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            near = difflib.get_close_matches(
                unknown[0], re.findall(r"--[a-z][a-z-]+", self.format_help()), 3
            )
            self.error(
                f"unknown option {unknown[0]!r}"
                + (f": did you mean {' or '.join(dict.fromkeys(near))}?" if near else "")
            )
        return given

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def complain(command: str, error: TorchbusError) -> int:
    """Print an error in one line; return the exit status, which is 2 for a UsageError, else 1."""
    print(f"{command}: {error}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1
