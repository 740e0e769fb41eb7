"""The logger "csv", which needs no client."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchbus.plugin import Context, expect

from torchbus_trackers.one_run import OneRun
from torchbus_trackers.table import Table


@dataclass(frozen=True)
class Files:
    """The files of a run.

    ``folder``: where they are.
    ``metrics``: one row for each step, with the columns ``step``, ``epoch`` and the values by name.
    ``system``: measurements of the machine, with the column ``time_s``.
    """

    folder: Path
    metrics: Table
    system: Table


class CSVLogger(OneRun):
    """Writes each run to a folder of CSV files, on rank 0.

    ``experiment`` is the run's ``Files``; ``experiment.folder`` is the folder.

    Args:
        root: each run gets a folder in it.
        name: the folder's name, by default date and time. If there is one of that name, it gets
            "-2", "-3" and so on.
        resume: the name of a folder in ``root`` to continue. The first step that is logged
            replaces the rows of this and all later steps.
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
        self._cut = resume is None
        self._config: dict[str, Any] = {}

    def needs_network(self) -> bool:
        return False

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Files:
        """Return the run. Raises FileNotFoundError if the run to resume has no folder."""
        folder = self._new_folder() if self._resume is None else self._root / self._resume
        if not folder.is_dir():
            raise FileNotFoundError(f"resume={self._resume!r}: there is no folder {folder}")
        self._config = {"torchbus": config}
        self._write_config(folder)
        return Files(
            folder,
            Table(folder / "metrics.csv", ["step", "epoch"]),
            Table(folder / "system.csv", ["time_s"]),
        )

    def id_of(self, run: Files) -> str:
        return run.folder.name

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        if not self._cut:
            self.experiment.metrics.cut("step", step)
            self._cut = True
        self.experiment.metrics.add({"step": step, "epoch": epoch, **metrics})

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self._config.setdefault("hyperparameters", {}).update(values)
        self._write_config(self.experiment.folder)

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        self.experiment.system.add({"time_s": time_s, **metrics})

    def folder(self) -> Path:
        return self._root

    def _new_folder(self) -> Path:
        name = self._name or time.strftime("%Y%m%d-%H%M%S")
        for number in range(1, 1000):
            folder = self._root / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            return folder
        raise FileExistsError(f"{self._root} has 999 runs of the name {name!r}")

    def _write_config(self, folder: Path) -> None:
        text = json.dumps(self._config, indent=1)
        (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")
