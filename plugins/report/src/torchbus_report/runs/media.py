"""Pictures, histograms and tables of a run: lines of media.jsonl, and PNG files that they name."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchbus_report.runs import files
from torchbus_report.runs.files import Unreadable, is_number, showable

PLACE = re.compile(r"media/[0-9]{1,9}\.png")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_BINS, LARGEST_STEP, LARGEST_VALUE = 512, 2**53, 1e300


@dataclass(frozen=True)
class Picture:
    name: str
    step: int
    path: Path

    def content(self, folder: Path) -> bytes | None:
        """Return the file, or None if it can't be read, or is not a PNG file."""
        try:
            found = files.whole(self.path, folder)
        except Unreadable:
            return None
        return found if found.startswith(SIGNATURE) else None


@dataclass(frozen=True)
class Distribution:
    """Counts of equal bins between ``low`` and ``high``."""

    name: str
    step: int
    counts: list[float]
    low: float
    high: float


@dataclass(frozen=True)
class Media:
    """Values other than numbers that rank 0 logged. ``problem`` says why the rest is missing."""

    pictures: list[Picture] = field(default_factory=list)
    histograms: list[Distribution] = field(default_factory=list)
    sheets: list[ReportTable] = field(default_factory=list)
    problem: str = ""


def read(folder: Path) -> Media:
    """Read all that can be read. Damaged lines are left out."""
    path, found = folder / "media.jsonl", Media()
    if not path.exists():
        return found
    try:
        with files.opened(path, folder) as file:
            for line in files.lines(file):
                one = _parsed(line, folder)
                if isinstance(one, Picture):
                    found.pictures.append(one)
                elif isinstance(one, ReportTable):
                    found.sheets.append(one)
                elif one is not None:
                    found.histograms.append(one)
    except Unreadable as error:
        return Media(found.pictures, found.histograms, found.sheets, f"{path.name} {error}")
    return found


def _parsed(line: bytes, folder: Path) -> Picture | Distribution | ReportTable | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not is_number(record.get("step"), LARGEST_STEP):
        return None
    return _picture(record, folder) or _histogram(record) or _sheet(record)


def _picture(record: dict[str, Any], folder: Path) -> Picture | None:
    name, file = record.get("image"), record.get("file")
    if not (isinstance(name, str) and isinstance(file, str) and PLACE.fullmatch(file)):
        return None
    return Picture(showable(name), int(record["step"]), folder / file)


def _histogram(record: dict[str, Any]) -> Distribution | None:
    name: Any = record.get("histogram")
    counts: Any = record.get("counts")
    ends: Any = record.get("range")
    if not (isinstance(name, str) and _are_counts(counts) and _are_ends(ends)):
        return None
    low, high = ends
    return Distribution(showable(name), int(record["step"]), counts, float(low), float(high))


def _are_counts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_BINS
        and all(is_number(one, LARGEST_VALUE) and one >= 0 for one in value)
    )


def _are_ends(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(is_number(one, LARGEST_VALUE) for one in value)
        and value[0] < value[1]
        and math.isfinite(value[1] - value[0])
    )


MOST_COLUMNS, MOST_ROWS, LONGEST_TEXT = 1025, 1025, 200
Cell = str | float


@dataclass(frozen=True)
class ReportTable:
    """A table. ``plot`` has the indices of the columns of x and y if the table is a curve."""

    name: str
    step: int
    columns: list[str]
    rows: list[list[Cell]]
    plot: tuple[int, int] | None


def _sheet(record: dict[str, Any]) -> ReportTable | None:
    """Return the table in a record, or None if the record is not a table."""
    name: Any = record.get("table")
    columns: Any = record.get("columns")
    rows: Any = record.get("rows")
    if not (isinstance(name, str) and _are_texts(columns) and isinstance(rows, list)):
        return None
    if len(columns) > MOST_COLUMNS or not all(_is_row(row, len(columns)) for row in rows):
        return None
    shown = [[_shown(cell) for cell in row] for row in rows[:MOST_ROWS]]
    plot = _plot(record.get("plot"), columns, rows)
    names = [showable(column)[:LONGEST_TEXT] for column in columns]
    return ReportTable(showable(name)[:LONGEST_TEXT], int(record["step"]), names, shown, plot)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _is_row(row: Any, size: int) -> bool:
    return (
        isinstance(row, list)
        and len(row) == size
        and all(isinstance(cell, str) or is_number(cell, LARGEST_VALUE) for cell in row)
    )


def _shown(cell: Cell) -> Cell:
    return showable(cell)[:LONGEST_TEXT] if isinstance(cell, str) else float(cell)


def _plot(wanted: Any, columns: list[str], rows: list[list[Any]]) -> tuple[int, int] | None:
    """Return the indices of the two columns to plot, or None unless both hold only numbers."""
    if not isinstance(wanted, list) or len(wanted) != 2 or any(x not in columns for x in wanted):
        return None
    x, y = (columns.index(column) for column in wanted)
    drawable = all(is_number(row[at], LARGEST_VALUE) for row in rows for at in (x, y))
    return (x, y) if drawable and len(rows) > 1 else None
