"""The logger "local": a folder of files for each run, no account, no network."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from torchbus import Session, hookimpl
from torchbus.arguments import expect
from torchbus.trackers import chosen_by_rank0, describe_run

from torchbus_log.folder import JsonLines, new_name, write_config

DEFAULT_ROOT = "torchbus-logs"


class Local:
    """``<log_dir>/<YYYYMMDD-HHMMSS-xxxx>/`` with config.json, and for each rank metrics-rank0.jsonl and system-rank0.jsonl.

    Each line has "step", "epoch" (not before the first), "time_s" since the session began, and the values by name.

    Args:
        log_dir: where run folders are made.
    """

    companions = ("log",)

    def __init__(self, *, log_dir: str | os.PathLike[str] = DEFAULT_ROOT) -> None:
        expect("log_dir", log_dir, (str, os.PathLike), "a path")
        self._root = Path(log_dir)
        self._started_s = 0.0
        self._pid = 0
        self._step = 0
        self._epoch: int | None = None
        self._config: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._metrics: JsonLines | None = None
        self._system: JsonLines | None = None
        self.folder: Path | None = None

    @hookimpl
    def session_start(self, session: Session) -> None:
        self._redactor = session.redactor
        self._started_s, self._pid = time.monotonic(), os.getpid()
        self.folder = folder = self._root / chosen_by_rank0(session, "log/folder", new_name)
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics = JsonLines(folder / f"metrics-rank{session.rank}.jsonl")
        self._system = JsonLines(folder / f"system-rank{session.rank}.jsonl")
        session.on_close.callback(self._close)
        if session.is_main:
            self._config = {"name": folder.name, **describe_run(session), "hyperparams": {}}
            write_config(folder, self._config)

    @hookimpl
    def hyperparameters(self, values: dict[str, Any]) -> None:
        if self._config is not None and self.folder is not None and os.getpid() == self._pid:
            self._config["hyperparams"] |= self._redactor.plain(values)
            write_config(self.folder, self._config)

    @hookimpl
    def metrics_ready(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        self._step, self._epoch = step, epoch
        self._write(self._metrics, metrics, time.monotonic() - self._started_s)

    @hookimpl
    def system_metrics(self, metrics: dict[str, float], time_s: float) -> None:
        with self._lock:
            self._write(self._system, metrics, time_s)

    def _write(self, file: JsonLines | None, metrics: dict[str, float], time_s: float) -> None:
        if file is not None and os.getpid() == self._pid:  # not in a process that the loop has forked
            epoch = {} if self._epoch is None else {"epoch": self._epoch}
            file.write({"step": self._step, **epoch, "time_s": round(time_s, 3), **metrics})

    def _close(self) -> None:
        with self._lock:
            for file in (self._metrics, self._system):
                if file is not None:
                    file.close()
            self._metrics = self._system = None

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"loggers": [f"local: each rank writes into {self.folder}"]}
