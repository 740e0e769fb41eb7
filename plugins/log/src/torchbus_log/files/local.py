"""The logger "local": a folder of files for each run, no account, no network."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torchbus.plugin import Context, expect, hookimpl, warn

from torchbus_log.files.folder import JsonLines, write_config, write_whole
from torchbus_log.files.patient import Patient
from torchbus_log.trackers.tracker import chosen_by_rank0, new_run_name
from torchbus_log.trackers.values import Image, Table, Values, describe_run
from torchbus_redaction.redactor import Redactor

DEFAULT_ROOT = "torchbus-logs"
PICTURES = "media"


class Local:
    """Writes a folder ``<log_dir>/<YYYYMMDD-HHMMSS-xxxx>/``.

    It has config.json, and for each rank metrics-rank0.jsonl and system-rank0.jsonl. Each line has
    "step", "epoch" (not before the first one), "time_s" since the session began, and the values by
    name. Rank 0 writes a line in media.jsonl for each histogram, table and picture. A picture is a
    PNG file in media/.

    If a record can't be written, training continues (see ``Patient``). The session warns, counts
    it, and tries again with the next record. The first line after a gap has "records_lost".

    Args:
        log_dir: the folder in which each run gets its own.
    """

    companions = ("log",)

    def __init__(self, *, log_dir: str | os.PathLike[str] = DEFAULT_ROOT) -> None:
        expect("log_dir", log_dir, (str, os.PathLike), "a path")
        self._root = Path(log_dir)
        self._started_s = 0.0
        self._pid = 0
        self._step = 0
        self._epoch: int | None = None
        self._config: dict[str, object] | None = None
        self._hyperparams: dict[str, object] = {}
        self._lock = threading.Lock()
        self._metrics: JsonLines | None = None
        self._system: JsonLines | None = None
        self._media: JsonLines | None = None
        self._pictures = 0
        self._disk: Patient | None = None
        self._has_warned = self._due = False
        self._redactor = Redactor()
        self.folder: Path | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._redactor = session.redactor
        self._started_s, self._pid = time.monotonic(), os.getpid()
        self.folder = folder = self._root / chosen_by_rank0(session, "log/folder", new_run_name)
        self._disk = Patient("torchbus-local")
        self._metrics = JsonLines(folder / f"metrics-rank{session.rank}.jsonl")
        self._system = JsonLines(folder / f"system-rank{session.rank}.jsonl")
        self._media = JsonLines(folder / "media.jsonl") if session.is_main else None
        session.on_close.callback(self._close)
        self._config = (
            {"name": folder.name, **describe_run(session), "hyperparams": self._hyperparams}
            if session.is_main
            else None
        )
        self._due = self._config is not None
        self._disk.begin(self._begin)

    @hookimpl
    def hyperparameters(self, values: dict[str, object]) -> None:
        if self._config is not None and os.getpid() == self._pid:
            self._hyperparams = {**self._hyperparams, **self._redactor.plain(values)}
            self._config = {**self._config, "hyperparams": self._hyperparams}
            self._due = True
            self._have_written(None, {})

    @hookimpl
    def metrics_ready(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        self._step, self._epoch = step, epoch
        self._write(self._metrics, metrics, time.monotonic() - self._started_s)
        self._warn()

    @hookimpl
    def image_ready(self, name: str, image: Image, step: int) -> None:
        """Rank 0 writes a PNG file, and then its line."""
        if self._media is None or self.folder is None:
            return
        image.pixels()  # copied now: the loop may change the tensor
        self._pictures += 1
        place = f"{PICTURES}/{self._pictures:06}.png"
        path, record = self.folder / place, {**self._now(step), "image": name, "file": place}
        self._have_written(self._media, record, lambda: write_whole(path, image.png()))

    @hookimpl
    def histogram_ready(self, name: str, values: Values, step: int) -> None:
        """Rank 0 writes a line."""
        if self._media is not None:
            found = values.counted()
            counts, edges = found.counts, [found.edges[0], found.edges[-1]]
            record = {"histogram": name, "counts": counts, "range": edges}
            self._have_written(self._media, {**self._now(step), **record})

    @hookimpl
    def table_ready(self, name: str, table: Table, step: int) -> None:
        """Rank 0 writes a line."""
        if self._media is not None:
            record = {"table": name, **dataclasses.asdict(table)}
            self._have_written(self._media, {**self._now(step), **record})

    @hookimpl(optionalhook=True)
    def system_metrics(self, metrics: dict[str, float], time_s: float) -> None:
        self._write(self._system, metrics, time_s)

    def _write(self, file: JsonLines | None, metrics: dict[str, float], time_s: float) -> None:
        epoch = {} if self._epoch is None else {"epoch": self._epoch}
        self._have_written(
            file, {"step": self._step, **epoch, "time_s": round(time_s, 3), **metrics}
        )

    def _now(self, step: int) -> dict[str, object]:
        return {"step": step, "time_s": round(time.monotonic() - self._started_s, 3)}

    def _have_written(
        self,
        file: JsonLines | None,
        record: dict[str, object],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a line on the disk's thread, and what must be there ``before`` it."""
        if os.getpid() != self._pid:
            return  # this is a process that the loop has forked

        def put(lost: int) -> bool:
            before()
            return self._put(file, record, lost)

        with self._lock:
            if self._disk is not None:
                self._disk.write(put)

    def _begin(self, lost: int) -> bool:
        """Create the folder. Runs on the disk's thread, as everything that follows there."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._put(None, {}, lost)

    def _put(self, file: JsonLines | None, record: dict[str, object], lost: int) -> bool:
        if self._due and self._config is not None and self.folder is not None:
            self._due = False
            try:
                write_config(self.folder, self._config)
            except OSError:
                self._due = True
                if file is None:
                    raise
        if file is not None:
            file.write({**record, **({"records_lost": lost} if lost else {})})
        return file is not None

    def _warn(self) -> None:
        if self._disk is not None and self._disk.first_error and not self._has_warned:
            self._has_warned = True
            warn(
                f"local: a record could not be written into {self.folder}:"
                f" {self._disk.first_error}. Training continues, and later records are tried"
            )

    def _close(self) -> None:
        with self._lock:
            disk, self._disk = self._disk, None
        if disk is None or os.getpid() != self._pid:
            return
        lost = disk.end(self._close_files)
        if lost:
            warn(
                f"local: {lost} of {disk.asked} records could not be written into {self.folder}:"
                f" {disk.first_error}"
            )

    def _close_files(self, lost: int) -> bool:
        with suppress(OSError):
            self._put(None, {}, lost)
        for file in (self._metrics, self._system, self._media):
            if file is not None:
                file.close()
        return False

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        lost = self._disk.lost if self._disk is not None else 0
        return {
            "loggers": [
                f"local: each rank writes into {self.folder}"
                + (f"; {lost} records of this one could not be written" if lost else "")
            ]
        }
