"""Reads the files of a run.

A killed process may leave an incomplete last line. All lines before it are read."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from torchbus.plugin import UsageError

from torchbus_redaction.redactor import Redactor
from torchbus_report.runs import files, media
from torchbus_report.runs.files import Unreadable, is_number, showable, shown
from torchbus_report.runs.summary import LONGEST_CELL, LoggedRun, Point, RankFile

NOT_METRICS = ("step", "epoch", "time_s", "records_lost")
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
LARGEST_STEP, LONGEST_TIME_S, LARGEST_VALUE = 2**53, 1e11, 1e308
MOST_DAMAGED = 100_000


class RunReader:
    """Reads the files of a run repeatedly. Of growing files, it reads only new lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[Path, RankFile] = {}

    def read(self) -> LoggedRun:
        """Read all that can be read. Problems are recorded in the result instead of raised."""
        folder = self._folder
        try:
            config, error = _config(folder)
            metrics, system = self._by_rank("metrics"), self._by_rank("system")
            pictures = media.read(folder)
            return LoggedRun(
                folder, config, metrics, system, error, pictures, _state(folder, config)
            )
        except Exception as error:  # one bad folder must not hide the others
            return LoggedRun(
                folder, {}, {}, {}, f"can't be read: {showable(f'{type(error).__name__}: {error}')}"
            )

    def _by_rank(self, kind: str) -> dict[int, RankFile]:
        found = {
            path: re.fullmatch(rf"{kind}-rank([0-9]{{1,9}})\.jsonl", path.name)
            for path in self._folder.glob(f"{kind}-rank*.jsonl")
        }
        return {
            rank: self._read(path)
            for rank, path in sorted(
                (int(match[1]), path) for path, match in found.items() if match
            )
        }

    def _read(self, path: Path) -> RankFile:
        before = self._lines.get(path, RankFile())
        try:
            with files.opened(path, self._folder) as file:
                if os.fstat(file.fileno()).st_size < before.size:
                    before = RankFile()  # the path now leads to another file
                file.seek(before.size)
                found = before.and_then(parsed(file, path.name))
        except Unreadable as error:
            return dataclasses.replace(before, problem=f"{path.name} {error}")
        self._lines[path] = found
        return found


def read(folder: Path) -> LoggedRun:
    """Read all that can be read in a run's folder. Problems are recorded in the result."""
    return RunReader(folder).read()


def stamp(folder: Path) -> object:
    """Return a value that changes when the files of the run change."""
    sizes: list[tuple[str, int, int]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # removed since the folder was listed
                found = entry.stat(follow_symlinks=False)
                sizes.append((entry.name, found.st_size, found.st_mtime_ns))
    return sorted(sizes), _is_open(folder)


def _state(folder: Path, config: Mapping[str, object]) -> str:
    """Return how the run has ended according to its config, or whether it still holds its lock."""
    ended = config.get("ended")
    if isinstance(ended, str):
        return ended if ended == "finished" else f"crashed: {ended}"[:LONGEST_CELL]
    is_open = _is_open(folder)
    return "" if is_open is None else "running" if is_open else "crashed: killed"


def _is_open(folder: Path) -> bool | None:
    """Whether rank 0 holds its lock, or None if that can't be determined."""
    try:
        with files.opened(folder / "running.lock", folder) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (Unreadable, OSError):
        return None
    return False


def elsewhere(folder: Path) -> LoggedRun:
    """Return a run without content, for a link that leads out of the folder."""
    return LoggedRun(
        folder,
        {},
        {},
        {},
        f"is a link that leads out of the folder: name {showable(str(folder))} to read it",
    )


def _config(folder: Path) -> tuple[dict[str, object], str]:
    try:
        found = json.loads(files.whole(folder / "config.json", folder).decode())
        return (
            (shown(Redactor().plain(found)), "")
            if isinstance(found, dict)
            else ({}, "config.json is damaged: it holds no object")
        )
    except Unreadable as error:
        return {}, f"config.json {error}"
    except RecursionError:
        return {}, "config.json is damaged: it is nested too deeply"
    except ValueError as error:
        return {}, f"config.json is damaged: {showable(str(error))}"


def parse(content: bytes) -> RankFile:
    """Parse the lines of one file."""
    return parsed(io.BytesIO(content))


def parsed(file: BinaryIO, name: str = "the file") -> RankFile:
    """Parse the lines of one file, as far as they can be read."""
    points: list[Point] = []
    damaged, lost, size, cut, problem = 0, 0, 0, False, ""
    try:
        for line in files.lines(file):
            size += len(line) if line.endswith(b"\n") else 0
            one = point(line) if line.strip() else None
            if one is not None:
                points.append(one)
                lost += one.lost
            elif line.strip():
                cut = not line.endswith(b"\n")
                damaged += not cut
            if damaged > MOST_DAMAGED:
                raise Unreadable(
                    f"has more than {MOST_DAMAGED:,} damaged lines: the rest is left out"
                )
    except Unreadable as error:
        problem = f"{name} {error}"
    return RankFile(points, damaged, cut, lost, problem, size)


def point(line: bytes) -> Point | None:
    """Parse one line. Return None if it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not is_number(record.get("time_s"), LONGEST_TIME_S):
        return None
    values = {
        name: NOT_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
        if name not in NOT_METRICS
    }
    numbers = {
        showable(name): float(value)
        for name, value in values.items()
        if isinstance(value, float) or is_number(value, LARGEST_VALUE)
    }
    return Point(
        _whole(record.get("step")),
        _whole(record.get("epoch")),
        float(record["time_s"]),
        numbers,
        _whole(record.get("records_lost")) or 0,
    )


def _whole(value: object) -> int | None:
    return int(value) if is_number(value, LARGEST_STEP) else None


FOLDER = "torchbus-logs"


def is_run(folder: Path) -> bool:
    return os.path.lexists(folder / "config.json") or any(folder.glob("metrics-rank*.jsonl"))


def all_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder by name, so oldest first, as names begin with the time.

    Raises UsageError if the folder does not exist or can't be read.
    """
    if not folder.is_dir():
        raise UsageError(
            f'there is no folder {folder}: session(logger="local") writes runs to {FOLDER}, or name'
            " another folder"
        )
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path))
    except OSError as error:
        raise UsageError(f"{folder} can't be read: {error.strerror}") from None


def leads_out(path: Path) -> bool:
    """Whether a path is a link to a folder elsewhere, which the user has not named."""
    return path.is_symlink() and path.resolve().parent != path.parent.resolve()


def find(word: str, folder: Path) -> Path:
    """Return the run that a path, a name, the beginning of a name, or "last" refers to.

    Raises UsageError if no run matches, or if several do.
    """
    if Path(word).is_dir() and is_run(Path(word)):
        return Path(word)
    known = all_runs(folder)
    if word == "last" and known:
        return known[-1]
    meant = [path for path in known if path.name == word] or [
        path for path in known if path.name.startswith(word)
    ]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UsageError(
            f"{word!r} may be any of {', '.join(path.name for path in meant[:5])}: write more of"
            " the name"
        )
    raise UsageError(
        f"there is no run {word!r} in {folder}; `torchbus runs` lists them ({len(known)} in"
        f" {folder})"
    )
