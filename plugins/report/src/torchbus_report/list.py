"""``torchbus runs``: list the runs that the local logger has written."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from torchbus.plugin import TorchbusError

from torchbus_cli.parser import Parser, complain, table
from torchbus_report.report import write
from torchbus_report.runs import columns, reading
from torchbus_report.runs.columns import Cell, Known, Wish
from torchbus_report.runs.summary import LoggedRun

DESCRIPTION = """List the runs that session(logger="local") has written, oldest first.

A NAME is a column (run, name, state, started, ranks, device, strategy, steps, epochs, time, loss,
"best loss", samples/s, notes), a logged value (val/acc: the last one; min:val/acc and max:val/acc:
its extremes), or a hyperparameter (lr, or hyperparams.lr where a value is named lr).
"""
EXAMPLES = """  torchbus runs
  torchbus runs /data/torchbus-logs
  torchbus runs --sort max:val/acc --reverse --where 'epochs>=10'
  torchbus runs --columns run,val/acc,lr
  torchbus runs --csv runs.csv
  torchbus runs --json | python -m json.tool
"""


def main(argv: list[str]) -> int:
    """List the runs that the local logger has written."""
    given = _parser().parse(argv)
    try:
        found = [columns.known(_read(folder)) for folder in reading.all_runs(given.folder)]
        wish = Wish(given.where, given.sort or "", given.reverse)
        chosen = columns.chosen(found, wish, given.columns or ())
        if given.csv is not None:
            rows = [cells for _, cells in chosen]
            names = given.columns or columns.everything(rows)
            write(given.csv, columns.as_csv(rows, names))
            print(f"{given.csv}: {len(rows)} runs, {len(names)} columns")
    except TorchbusError as error:
        return complain("torchbus runs", error)
    if given.json:
        print(json.dumps([run.plain() for run, _ in chosen], indent=2))
    elif chosen and given.csv is None:
        _print_table(given, chosen)
    elif not chosen:
        none = "no run with such values" if found else "no run"
        print(f'{none} in {given.folder}: session(logger="local") writes one')
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
    parser.add_argument("--sort", metavar="NAME", help="smallest first; runs without it come last")
    parser.add_argument("--reverse", action="store_true", help="largest, or newest, first")
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        action="append",
        default=[],
        help="only runs for which it holds: NAME, one of >= <= != = > <, and a value; repeatable",
    )
    parser.add_argument(
        "--columns",
        metavar="NAME,NAME",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        help="the columns to show (default: facts, and the first values that the loop has logged)",
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write a CSV file instead")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of objects instead of a table"
    )
    return parser


def _print_table(given: argparse.Namespace, runs: Sequence[Known]) -> None:
    names, left_out = columns.usual([run for run, _ in runs])
    if given.columns:
        names, left_out = given.columns, []
    empty = Cell("", "")
    rows = [[known.get(name, empty).text for name in names] for _, known in runs]
    _print(table([[name.upper() for name in names], *rows]))
    if left_out:
        _print(f"also logged, see --columns: {', '.join(left_out)}")


def _read(folder: Path) -> LoggedRun:
    return reading.elsewhere(folder) if reading.leads_out(folder) else reading.read(folder)


def _print(text: str) -> None:
    """Print, and replace characters that the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
