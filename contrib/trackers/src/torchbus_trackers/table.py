"""A CSV file that grows by rows, and by columns where a row brings new ones."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Row = Mapping[str, object]


class Table:
    """A CSV file whose rows may bring new columns.

    A row is appended, and is whole or not there: what a failed call has left is cut off by the
    next. New columns rewrite the file, beside the old one, which is replaced at once.

    Args:
        path: the file. If it is there, the rows in it stay.
        columns: those that come first.
    """

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        self._path = path
        self._columns = list(columns)
        self._size = 0
        if path.exists():
            self._size = path.read_bytes().rfind(b"\n") + 1
            self._columns = _read(self._whole())[0] or self._columns

    def add(self, row: Row) -> None:
        """Append a row."""
        new = [name for name in row if name not in self._columns]
        if new or not self._size:
            self._columns += new
            self._write(lambda row: True)
        with open(self._path, "r+b") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(self._lines([row]))
        self._size = self._path.stat().st_size

    def cut(self, column: str, at: int) -> None:
        """Leave out the rows whose number in ``column`` is ``at`` or larger."""
        if self._size:
            self._write(lambda row: float(row[column] or 0) < at)

    def _write(self, keep: Callable[[dict[str, str]], bool]) -> None:
        """Rewrite the file, with all columns and the rows to keep."""
        rows = [row for row in _read(self._whole())[1] if keep(row)]
        again = self._path.with_name(f"{self._path.name}.new")
        again.write_bytes(
            self._lines([dict(zip(self._columns, self._columns, strict=True)), *rows])
        )
        os.replace(again, self._path)
        self._size = self._path.stat().st_size

    def _whole(self) -> bytes:
        """The content of the file, up to the end of the last whole row."""
        return self._path.read_bytes()[: self._size] if self._size else b""

    def _lines(self, rows: Iterable[Row]) -> bytes:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


def _read(whole: bytes) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows of a file's content."""
    reader = csv.DictReader(io.StringIO(whole.decode(), newline=""))
    return list(reader.fieldnames or ()), list(reader)
