"""``torchbus runs``: list the runs that the local logger has written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchbus.plugin import TorchbusError

from torchbus_cli.parser import Parser, complain, table
from torchbus_report.runs import reading, summary
from torchbus_report.runs.summary import Run

DESCRIPTION = """List the runs that session(logger="local") has written, oldest first."""
EXAMPLES = """  torchbus runs
  torchbus runs /data/torchbus-logs
  torchbus runs --json | python -m json.tool
"""
COLUMNS = ("run", "name", "ranks", "steps", "time", "loss", "notes")


def main(argv: list[str]) -> int:
    """List the runs that the local logger has written."""
    given = _parser().parse(argv)
    try:
        found = [summary.of(_read(folder)) for folder in reading.all_runs(given.folder)]
    except TorchbusError as error:
        return complain("torchbus runs", error)
    if given.json:
        print(json.dumps([one.plain() for one in found], indent=2))
    elif found:
        rows = [[one.cells()[column] for column in COLUMNS] for one in found]
        _print(table([[column.upper() for column in COLUMNS], *rows]))
    else:
        print(f'no run in {given.folder}: session(logger="local") writes one')
    return 0


def _parser() -> Parser:
    parser = Parser("runs", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(reading.FOLDER),
        help=f"the folder with the runs (default: {reading.FOLDER})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of objects instead of a table"
    )
    return parser


def _read(folder: Path) -> Run:
    return reading.elsewhere(folder) if reading.leads_out(folder) else reading.read(folder)


def _print(text: str) -> None:
    """Print, and replace characters that the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
