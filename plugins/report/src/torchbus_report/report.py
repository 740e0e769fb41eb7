"""``torchbus report``: write one HTML page about one or several runs."""

from __future__ import annotations

import os
from pathlib import Path

from torchbus.plugin import TorchbusError, UsageError

from torchbus_cli.parser import Parser, complain
from torchbus_report.page import page
from torchbus_report.runs import reading

DESCRIPTION = """Write one HTML page about one or several runs: losses, learning rates, throughput,
each rank's GPU and CPU, configuration.

The page holds all that it needs: it opens without a server and without a network. A RUN is its
folder, its name, the beginning of its name, or "last".
"""
EXAMPLES = """  torchbus report last
  torchbus report 20260214-1030 20260214-1115 -o compared.html
  torchbus report runs/a runs/b
"""
MOST_RUNS = 16


def main(argv: list[str]) -> int:
    """Write one HTML page about one or several runs."""
    given = _parser().parse(argv)
    try:
        folders = list(dict.fromkeys(reading.find(word, given.folder) for word in given.runs))
        if len(folders) > MOST_RUNS:
            raise UsageError(
                f"{len(folders)} runs on one page can't be distinguished: name at most {MOST_RUNS}"
            )
        text = page([reading.read(folder) for folder in folders])
        write(given.output, text)
    except TorchbusError as error:
        return complain("torchbus report", error)
    print(
        f"{given.output}: {len(folders)} run{'s' if len(folders) > 1 else ''},"
        f" {len(text.encode()) / 1024:.0f} KiB"
    )
    return 0


def _parser() -> Parser:
    parser = Parser("report", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help='a folder, a name or its beginning, or "last"'
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        help="the page to write (default: report.html)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(reading.FOLDER),
        help=f"the folder in which names are looked up (default: {reading.FOLDER})",
    )
    return parser


def write(path: Path, text: str) -> None:
    """Write the whole page, or leave what was there before. Raises UsageError."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # of a command that was killed
        with part.open("x", encoding="utf-8", errors="replace") as file:  # follows no link
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True) if part.is_file() else None
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
