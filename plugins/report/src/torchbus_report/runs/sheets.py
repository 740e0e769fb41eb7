"""Tables that plugins have given to the logger "local": lines of media.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchbus_report.runs.files import showable

MOST_COLUMNS, MOST_ROWS, LONGEST_TEXT, LARGEST = 1025, 1025, 200, 1e300
Cell = str | float


@dataclass(frozen=True)
class Sheet:
    """A table. ``plot``: the columns of x and y if it is a curve."""

    name: str
    step: int
    columns: list[str]
    rows: list[list[Cell]]
    plot: tuple[int, int] | None


def parsed(record: dict[str, Any]) -> Sheet | None:
    """Return the table of a line, or None if it is none."""
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
    return Sheet(showable(name)[:LONGEST_TEXT], int(record["step"]), names, shown, plot)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _is_row(row: Any, size: int) -> bool:
    return isinstance(row, list) and len(row) == size and all(_is_cell(cell) for cell in row)


def _is_cell(cell: Any) -> bool:
    return isinstance(cell, str) or _is_number(cell)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool) and abs(cell) <= LARGEST


def _shown(cell: Cell) -> Cell:
    return showable(cell)[:LONGEST_TEXT] if isinstance(cell, str) else float(cell)


def _plot(wanted: Any, columns: list[str], rows: list[list[Any]]) -> tuple[int, int] | None:
    """The places of two columns that hold nothing but numbers, or None."""
    if not isinstance(wanted, list) or len(wanted) != 2 or any(x not in columns for x in wanted):
        return None
    x, y = (columns.index(column) for column in wanted)
    drawable = all(_is_number(row[x]) and _is_number(row[y]) for row in rows)
    return (x, y) if drawable and len(rows) > 1 else None
