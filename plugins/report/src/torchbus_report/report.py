"""``torchbus report``: one HTML page about one or several runs, or pages that follow them."""

from __future__ import annotations

import os
from pathlib import Path

from torchbus.plugin import TorchbusError, UsageError

from torchbus_cli.parser import Parser, complain
from torchbus_report import live
from torchbus_report.page import page
from torchbus_report.runs import reading

DESCRIPTION = """Write one HTML page about one or several runs: losses, learning rates, throughput,
each rank's GPU and CPU, configuration.

The page holds all that it needs: it opens without a server and without a network. A RUN is its
folder, its name, the beginning of its name, or "last". With --live, pages of a server follow all
runs while they train; only browsers on this machine reach it.
"""
EXAMPLES = """  torchbus report last
  torchbus report 20260214-1030 20260214-1115 -o compared.html
  torchbus report runs/a runs/b
  torchbus report --live
"""
MOST_RUNS = 16


def main(argv: list[str]) -> int:
    """Write one HTML page about one or several runs."""
    parser = _parser()
    given = parser.parse(argv)
    if given.live == bool(given.runs):
        parser.error(
            "--live follows all runs of --folder: leave RUN out" if given.live else "name a RUN"
        )
    try:
        if given.live:
            return live.serve(given.folder, given.port)
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
        "runs", nargs="*", metavar="RUN", help='a folder, a name or its beginning, or "last"'
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
    parser.add_argument(
        "--live", action="store_true", help="serve pages that follow all runs, until Ctrl+C"
    )
    parser.add_argument(
        "--port", type=int, help=f"of --live (default: {live.PORT}, or a free one if it is taken)"
    )
    return parser


def write(path: Path, text: str) -> None:
    """Write a file atomically. If it can't be written, the previous file remains.

    Raises UsageError.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # left by a command that was killed
        with part.open("x", encoding="utf-8", errors="replace") as file:  # "x" follows no link
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True) if part.is_file() else None
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
