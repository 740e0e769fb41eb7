"""The logger "csv", which needs no client."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchbus.plugin import Context, expect

from torchbus_log.trackers.tracker import new_folder
from torchbus_trackers.one_run import OneRun

Row = Mapping[str, object]


class CsvTable:
    """Appends rows to a CSV file. A row may have new columns.

    Each call first cuts off the part of a row that a failed call has left. A new column rewrites
    the file to a second one, which then replaces the first atomically.

    Args:
        path: the file. If it exists, its rows stay.
        columns: the first columns, which say what a row is about.
    """

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        self._path = path
        self._columns = list(columns)
        self._keys = set(self._columns)
        self._size = self._num_earlier = 0
        if path.exists():
            self._size = path.read_bytes().rfind(b"\n") + 1
            found, rows = _read(self._whole())
            self._columns, self._num_earlier = found or self._columns, len(rows)

    def add(self, row: Row) -> None:
        """Append a row. Raises OSError if it can't be written."""
        new = [name for name in row if name not in self._columns]
        if new or not self._size:
            self._write(lambda row: row, [*self._columns, *new])
        with open(self._path, "r+b") as file:
            file.truncate(self._size)
            file.seek(self._size)
            file.write(_lines(self._columns, [row]))
        self._size = self._path.stat().st_size

    def cut(self, column: str, at: int, names: Iterable[str]) -> None:
        """Remove what is written again from the rows that the file had at first.

        These are the values of these names in rows whose number in ``column`` is ``at``, and all
        rows with a larger number.
        """

        def left(row: dict[str, str]) -> dict[str, str]:
            number = float(row[column] or 0)
            again = self._columns if number > at else names if number == at else ()
            values = {one: value for one, value in row.items() if one not in {*again} - self._keys}
            return values if any(values[one] for one in values.keys() - self._keys) else {}

        if self._size:
            self._write(left, self._columns)

    def _write(
        self, change: Callable[[dict[str, str]], dict[str, str]], columns: list[str]
    ) -> None:
        """Rewrite the file with ``columns``. Of the earlier rows, keep what ``change`` returns."""
        rows = _read(self._whole())[1]
        earlier = [left for left in map(change, rows[: self._num_earlier]) if left]
        rows = [*earlier, *rows[self._num_earlier :]]
        again = self._path.with_name(f"{self._path.name}.new")
        header = dict(zip(columns, columns, strict=True))
        again.write_bytes(_lines(columns, [header, *rows]))
        os.replace(again, self._path)
        # not before the file has them: the disk may be full
        self._columns, self._num_earlier = columns, len(earlier)
        self._size = self._path.stat().st_size

    def _whole(self) -> bytes:
        """Return the content of the file, up to the end of the last complete row."""
        return self._path.read_bytes()[: self._size] if self._size else b""


def _lines(columns: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _read(whole: bytes) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a file's content."""
    reader = csv.DictReader(io.StringIO(whole.decode(), newline=""))
    return list(reader.fieldnames or ()), list(reader)


@dataclass(frozen=True)
class Files:
    """The files of a run.

    ``folder`` contains them. ``metrics`` has one row for each step, with the columns ``step``,
    ``epoch`` and one for each metric. ``system`` has measurements of the machine, by the column
    ``time_s``.
    """

    folder: Path
    metrics: CsvTable
    system: CsvTable


class CSVLogger(OneRun):
    """Writes each run to a folder of CSV files, on rank 0.

    ``experiment`` is the run's ``Files``; ``experiment.folder`` is the folder.

    Args:
        root: the folder in which each run gets a folder.
        name: the name of the run's folder, by default date and time. If that folder exists, the
            name gets "-2", "-3" and so on.
        resume: the name of a folder in ``root`` to continue. The first logged step replaces the
            same values of this step, and the rows of all later steps.
        on_error, finish_timeout_s: as in ``torchbus_log.trackers.tracker.Tracker``.
    """

    name = "csv"
    module = "csv"

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] = "csv-logs",
        name: str | None = None,
        resume: str | None = None,
        on_error: str = "warn",
        finish_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(
            name=name, resume=resume, on_error=on_error, finish_timeout_s=finish_timeout_s
        )
        expect("root", root, (str, os.PathLike), "a path")
        self._root = Path(root)
        self._first_step: int | None = None
        self._config: dict[str, Any] = {}

    def needs_network(self) -> bool:
        return False

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Files:
        """Return the run's files. Raises FileNotFoundError if the run to resume has no folder."""
        name = self._name or time.strftime("%Y%m%d-%H%M%S")
        folder = self._root / self._resume if self._resume else new_folder(self._root, name)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"resume={self._resume!r}: there is no folder {folder}. Pass the name of a run in"
                f" {self._root}"
            )
        self._config = {"torchbus": config}
        self._write_config(folder)
        return Files(
            folder,
            CsvTable(folder / "metrics.csv", ["step", "epoch"]),
            CsvTable(folder / "system.csv", ["time_s"]),
        )

    def id_of(self, run: Files) -> str:
        return run.folder.name

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        if self._first_step is None:
            self._first_step = step
        if self._resume is not None and step == self._first_step:
            self.experiment.metrics.cut("step", step, metrics)
        self.experiment.metrics.add({"step": step, "epoch": epoch, **metrics})

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self._config.setdefault("hyperparameters", {}).update(values)
        self._write_config(self.experiment.folder)

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        self.experiment.system.add({"time_s": time_s, **metrics})

    def folder(self) -> Path:
        return self._root

    def _write_config(self, folder: Path) -> None:
        text = json.dumps(self._config, indent=1)
        (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")
