"""One run of the script, from the fork of its process to its record."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from torchbus_verify._compat import clear_exit_functions, run_exit_functions
from torchbus_verify.record.writing import PROGRESS, RankRecord
from torchbus_verify.runs import inside
from torchbus_verify.runs.inside import Change, RunRequest
from torchbus_verify.runs.script_session import SESSION
from torchbus_verify.runs.writes import FolderMirror

Watch = Callable[[int], None]
"""Called with the number of steps so far, a few times a second."""


@dataclass(frozen=True)
class EndedRun:
    """The results of a run that has ended."""

    folder: Path
    work: Path
    status: int
    seconds: float
    written: tuple[Path, ...]

    @cached_property
    def ranks(self) -> list[RankRecord]:
        return [
            RankRecord(path)
            for path in sorted(self.folder.glob("rank*"), key=lambda one: int(one.name[4:]))
        ]

    @property
    def first(self) -> RankRecord:
        """The record of rank 0."""
        return self.ranks[0] if self.ranks else RankRecord(self.folder / "rank0")

    @property
    def failure(self) -> str:
        """The traceback that ended the run, or "" after a success."""
        if not self.status:
            return ""
        return (
            inside.read_note(self.folder / inside.FAILED)
            or self.stderr
            or f"exit status {self.status}"
        )

    @property
    def outside(self) -> str:
        """The path outside of its folder that the run tried to write, or ""."""
        return inside.read_note(self.folder / inside.OUTSIDE)

    @property
    def session(self) -> str:
        """The plugins and options of a session that the script begins, as text, or ""."""
        return inside.read_note(self.folder / SESSION)

    @property
    def stderr(self) -> str:
        return inside.read_note(self.folder / "stderr").strip()


def run(
    request: RunRequest,
    folder: Path,
    *,
    alone: bool,
    changes: Sequence[Change] = (),
    watch: Watch = lambda steps: None,
) -> EndedRun:
    """Run the script without a session (``alone``) or with it, in a new ``folder``."""
    folder.mkdir(parents=True)
    mirror = FolderMirror(request.folder, folder / "work")
    mirror.make()
    begun_s = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become(request, folder, mirror, alone, changes)
    try:
        status = _wait(pid, folder, watch)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return EndedRun(
        folder, mirror.place, status, time.monotonic() - begun_s, tuple(mirror.written())
    )


def _wait(pid: int, folder: Path, watch: Watch) -> int:
    progress = folder / "rank0" / PROGRESS
    pause_s = 0.005
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        watch(progress.stat().st_size if progress.exists() else 0)
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.2)


def _become(
    request: RunRequest, folder: Path, mirror: FolderMirror, alone: bool, changes: Sequence[Change]
) -> NoReturn:
    """Run the script in this forked process."""
    gc.freeze()  # objects from before the script, which the session need not search
    status = 1
    try:
        clear_exit_functions()  # the parent's exit handlers are not for this process
        os.setsid()
        _redirect(folder)
        os.chdir(mirror.place)
        status = inside.execute(request, folder, mirror, alone, changes)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(folder: Path) -> None:
    """Detach from the terminal and stdin; write stdout and stderr to files, through new streams."""
    files = [
        os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for name in ("stdout", "stderr")
    ]
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files)):
        os.dup2(file, number)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
