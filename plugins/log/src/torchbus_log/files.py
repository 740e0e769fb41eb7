"""The folder of a run: files that are complete up to their last line, on disks that may fail."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from torchbus.plugin import Context, UsageError, expect, hookimpl, warn

from torchbus_log.trackers.tracker import chosen_by_rank0, new_run_name
from torchbus_log.trackers.values import Image, LoggedTable, Values, describe_run
from torchbus_redaction.redactor import Redactor

DEFAULT_ROOT = "torchbus-logs"
PICTURES = "media"
RUNNING = "running.lock"
"""The name of a file that exists, and is locked, while rank 0 writes."""


class Local:
    """Writes a folder ``<log_dir>/<YYYYMMDD-HHMMSS-xxxx>/``.

    The folder contains config.json, and for each rank N metrics-rankN.jsonl and system-rankN.jsonl.
    Each line has "step", "epoch" (except before the first epoch), "time_s" since the session began,
    and the values by name. Rank 0 writes a line in media.jsonl for each histogram, table and
    picture. A picture is a PNG file in media/.

    If a record can't be written, training continues (see ``Patient``). The session warns once,
    counts the record as lost, and tries again with the next one. The first line after a gap has
    "records_lost".

    Args:
        log_dir: the parent folder, in which each run creates a folder.
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
        self._running: BinaryIO | None = None
        self._pictures = 0
        self._disk: Patient | None = None
        self._has_warned = self._due = False
        self._redactor = Redactor()
        self.folder: Path | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.dry_run:
            return
        self._redactor = session.redactor
        self._started_s, self._pid = time.monotonic(), os.getpid()
        self.folder = folder = self._root / chosen_by_rank0(session, "log/folder", new_run_name)
        self._disk = Patient("torchbus-local")
        self._metrics = JsonLines(folder / f"metrics-rank{session.rank}.jsonl")
        self._system = JsonLines(folder / f"system-rank{session.rank}.jsonl")
        self._media = JsonLines(folder / "media.jsonl") if session.is_main else None
        session.on_close.push(self._leave)
        self._config = (
            {"name": folder.name, **describe_run(session), "hyperparams": self._hyperparams}
            if session.is_main
            else None
        )
        self._due = self._config is not None
        try:
            self._disk.begin(self._begin)
        except OSError as error:
            raise UsageError(
                f"local: the folder {folder} can't be created: {error.strerror}. Pass the path of"
                " another parent folder as log_dir="
            ) from None
        self._warn()

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
        """On rank 0, write a PNG file, and then a line that names it."""
        if self._media is None or self.folder is None:
            return
        image.pixels()  # copied now, as the loop may change the tensor
        self._pictures += 1
        place = f"{PICTURES}/{self._pictures:06}.png"
        path, record = self.folder / place, {**self._now(step), "image": name, "file": place}
        self._have_written(self._media, record, lambda: write_whole(path, image.png()))

    @hookimpl
    def histogram_ready(self, name: str, values: Values, step: int) -> None:
        """On rank 0, write a line with the counts."""
        if self._media is not None:
            found = values.counted()
            counts, edges = found.counts, [found.edges[0], found.edges[-1]]
            record = {"histogram": name, "counts": counts, "range": edges}
            self._have_written(self._media, {**self._now(step), **record})

    @hookimpl
    def table_ready(self, name: str, table: LoggedTable, step: int) -> None:
        """On rank 0, write a line with the table."""
        if self._media is not None:
            record = {"table": name, **dataclasses.asdict(table)}
            self._have_written(self._media, {**self._now(step), **record})

    @hookimpl(optionalhook=True)
    def system_metrics(self, metrics: dict[str, float], time_s: float) -> None:
        self._write(self._system, metrics, time_s)

    def _write(self, file: JsonLines | None, metrics: dict[str, float], time_s: float) -> None:
        epoch = {} if self._epoch is None else {"epoch": self._epoch}
        place = {"step": self._step, **epoch, "time_s": round(time_s, 3)}
        self._have_written(file, {**place, **metrics, **place})

    def _now(self, step: int) -> dict[str, object]:
        return {"step": step, "time_s": round(time.monotonic() - self._started_s, 3)}

    def _have_written(
        self,
        file: JsonLines | None,
        record: dict[str, object],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a line on the disk's thread, after a call of ``before``."""
        if os.getpid() != self._pid:
            return  # the loop has forked this process

        def put(lost: int) -> bool:
            before()
            return self._put(file, record, lost)

        with self._lock:
            if self._disk is not None:
                self._disk.write(put)

    def _begin(self, lost: int) -> bool:
        """Create the folder. Runs on the disk's thread, like all later writes."""
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._config is not None:
            with suppress(OSError):  # the disk is full, or has no locks
                self._running = open(self.folder / RUNNING, "wb")
                fcntl.flock(self._running, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def _leave(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write how the run has ended, and close the files."""
        failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        if self._config is not None:
            self._config = {**self._config, "ended": type(error).__name__ if failed else "finished"}
            self._due = True
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
        for file in (self._metrics, self._system, self._media, self._running):
            if file is not None:
                file.close()
        if self._running is not None and self.folder is not None:
            with suppress(OSError):
                (self.folder / RUNNING).unlink()
        return False

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        lost = self._disk.lost if self._disk is not None else 0
        line = f"each rank writes into {self.folder}" if self.folder else "not running"
        line += f"; {lost} records of this one could not be written" if lost else ""
        return {"loggers": [f"local: {line}"]}


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    """Write config.json atomically. If this raises OSError, the previous file remains."""
    write_whole(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically. If this raises OSError, the previous file remains."""
    part = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


class JsonLines:
    """A file with one JSON object per line.

    One system call writes a line, so the line remains even if the process dies. NaN and infinities
    become strings. The first line creates the file, and its folder if needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_ragged = False

    def write(self, record: Mapping[str, object]) -> None:
        """Write a line. Raises OSError if the disk has no room for the whole line.

        Then the written part is removed. If that fails, the next line begins after a line break.
        """
        line = json.dumps({name: _safe(value) for name, value in record.items()}).encode() + b"\n"
        try:
            descriptor = self._opened()
            line = b"\n" + line if self._is_ragged else line
            written = os.write(descriptor, line)
            if written < len(line):
                self._take_back(descriptor, written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self.close()  # the next time, the path may lead to another file, as after a new mount
            raise
        self._is_ragged = False

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        return self._descriptor

    def _take_back(self, descriptor: int, written: int) -> None:
        """Remove the beginning of a line whose end had no room."""
        self._is_ragged = written > 0
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            self._is_ragged = False


def _safe(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


TOO_SLOW = "the disk is too slow"
PATIENCE_S = 0.25
STARTS_WITHIN_S, ENDS_WITHIN_S = 30.0, 10.0
WAITING_AT_MOST = 10_000
PASSING = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.EFBIG,
    errno.ETIMEDOUT,
    errno.ENODEV,
    errno.ENXIO,
    errno.ENOTCONN,
    errno.EROFS,
)
"""Errors of the disk and not of the folder's path. A later call may succeed."""


class DiskCall:
    """One call on the disk's thread. ``done`` is locked until the call has returned or raised."""

    def __init__(self, function: Callable[[int], bool], is_record: bool) -> None:
        self.function = function
        self.is_record = is_record
        self.done = threading.Lock()
        self.done.acquire()
        self.error: Exception | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the call. Return False if it is not done after ``timeout_s``."""
        return self.done.acquire(timeout=timeout_s)


class Patient:
    """Writes records in order on a separate thread.

    The loop waits for each record to be written, so that it remains even if the process dies. It
    waits at most ``PATIENCE_S``. If that is too short, it does not wait again until the thread has
    caught up.

    ``asked`` is the number of records, and ``lost`` is how many of them could not be written.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[DiskCall | None] = SimpleQueue()
        self._late: DiskCall | None = None
        self.asked = self.lost = self._written = self._untold = 0
        self.first_error = ""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def begin(self, function: Callable[[int], bool]) -> None:
        """Create the folder. Raises OSError if that is impossible.

        If the disk is only full or slow, later records try again.
        """
        call = self._submitted(function, False)
        if not call.wait(STARTS_WITHIN_S):
            self._late = call
        elif call.error is not None and getattr(call.error, "errno", None) not in PASSING:
            raise call.error

    def write(self, function: Callable[[int], bool]) -> None:
        """Call ``function(lost)`` on the thread: ``lost`` records before this one were not written.

        The function returns whether it has written this number. An error that is not an OSError is
        raised here, if the function ends while the loop waits.
        """
        self.asked += 1
        if self.asked - self.lost - self._written > WAITING_AT_MOST:
            self._lose(TOO_SLOW)
            return
        call = self._submitted(function, True)
        if (self._late is not None and not self._late.wait(0.0)) or not call.wait(PATIENCE_S):
            self._late = call
        else:
            self._late = None
            if call.error is not None and not isinstance(call.error, OSError):
                raise call.error

    def end(self, function: Callable[[int], bool]) -> int:
        """Call ``function`` last, and wait for some seconds. Return how many records are lost."""
        call = self._submitted(function, False)
        self._calls.put(None)
        if not call.wait(ENDS_WITHIN_S):
            self.first_error = self.first_error or TOO_SLOW
            return self.asked - self._written
        self._thread.join(ENDS_WITHIN_S)
        return self.lost

    def _submitted(self, function: Callable[[int], bool], is_record: bool) -> DiskCall:
        call = DiskCall(function, is_record)
        self._calls.put(call)
        return call

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._make(call)
            call.done.release()

    def _make(self, call: DiskCall) -> None:
        try:
            if call.function(self._untold):
                self._untold = 0
            self._written += call.is_record
        except OSError as error:
            call.error = error
            why = error.strerror or type(error).__name__
            self.first_error = self.first_error or why
            if call.is_record:
                self._lose(why)
        except Exception as error:  # caused by the record and not the disk, so the caller gets it
            call.error = error

    def _lose(self, why: str) -> None:
        self.lost += 1
        self._untold += 1
        self.first_error = self.first_error or why
