"""Manners in a folder: one job at a time, nothing left of dead ones, nothing stopped by what can't
be read.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torchbus import session
from torchbus.plugin import UsageError

from torchbus_checkpoint import locks
from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.locks import FolderLock, Owner
from torchbus_rank0 import whole_files

from .short_run import train

SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = SCRIPTS / "locked_train.py"


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_job_in_a_folder_is_refused(run: Any, tmp_path: Path, ranks: int) -> None:
    with session(checkpoint=tmp_path / "all", every_n_steps=1) as s:
        second = run(TRAIN, ranks, folder=tmp_path)
        train(s)
    words = f"another job writes its checkpoints to {tmp_path / 'all'}: process {os.getpid()} on {os.uname().nodename!r}, since 2"
    assert (
        second.status == 1
        and words in second.stderr
        and "Wait until it ends, or use another folder" in second.stderr
    )
    assert len(folder.found(tmp_path / "all")) == 3
    assert not (tmp_path / "all" / locks.NAME).exists()
    assert "ended at 5" in run(TRAIN, ranks, folder=tmp_path).ok().stdout


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_job_goes_on_at_once(run: Any, tmp_path: Path, ranks: int) -> None:
    """Though a process that it has forked is alive still."""
    try:
        assert run(TRAIN, ranks, "deadly", folder=tmp_path).status == -signal.SIGKILL
        assert (tmp_path / "all" / locks.NAME).exists()
        os.kill(int((tmp_path / "child").read_text()), 0)
        assert "begun at 1 ended at 5" in run(TRAIN, ranks, folder=tmp_path).ok().stdout
    finally:
        (tmp_path / "end").touch()
    assert not (tmp_path / "all" / locks.NAME).exists()


def test_a_lock_is_released_by_errors_too(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), session(checkpoint=tmp_path / "all") as s:
            s.epochs(1)
            raise KeyError
    assert not (tmp_path / "all").exists()  # nothing was written


def test_a_lock_whose_note_is_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.0)
    for note in (
        b"",
        b"\xff",
        b"[" * 9000,
        b"null",
        b'{"host": 1, "pid": -1, "since": 2}',
        b'{"pid": 1}',
    ):
        (tmp_path / locks.NAME).write_bytes(note)
        held = FolderLock(tmp_path)
        (tmp_path / locks.NAME).write_bytes(note)
        with pytest.raises(CheckpointError, match="an unknown one"):
            FolderLock(tmp_path)
        held.release()


def test_a_lock_that_was_removed_is_another_one(tmp_path: Path) -> None:
    """By hand, where a host is gone for good; the release of the first does not free
    the second's.
    """
    first = FolderLock(tmp_path)
    (tmp_path / locks.NAME).unlink()
    second = FolderLock(tmp_path)
    first.release()
    assert (tmp_path / locks.NAME).exists()
    second.release()
    assert not (tmp_path / locks.NAME).exists()


def test_a_lock_that_ends_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was opened has lost its name by the time it is locked: a third job would make a
    new one.
    """
    first = FolderLock(tmp_path)

    def try_lock(descriptor: int) -> bool | None:
        first.release()
        return whole_files.try_lock(descriptor)

    monkeypatch.setattr(locks, "try_lock", try_lock)
    monkeypatch.setattr(locks, "PATIENCE_S", 0.2)
    second = FolderLock(tmp_path)
    with pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
        FolderLock(tmp_path)
    second.release()


def test_a_folder_that_nothing_can_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = "can't write to this folder: Not a directory"
    with pytest.raises(CheckpointError, match=words), session(checkpoint=tmp_path / "file" / "in"):
        pass
    with pytest.raises(UsageError, match="file' is a file: pass a folder for new checkpoints"):
        session(checkpoint=tmp_path / "file")


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre without ``-o flock``, which no test can mount."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(whole_files.fcntl, "flock", flock)
    monkeypatch.setattr(locks, "PATIENCE_S", 0.0)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_note_counts_on_one_host(tmp_path: Path) -> None:
    alive = subprocess.Popen(["sleep", "60"])
    here = Owner.here()
    note = Owner(here.host, alive.pid, here.since)
    (tmp_path / locks.NAME).write_bytes(note.note())
    with pytest.raises(CheckpointError, match=rf"process {alive.pid} on '{here.host}', since"):
        FolderLock(tmp_path)
    (tmp_path / locks.NAME).write_bytes(
        Owner(here.host, alive.pid, here.since, "another process had this number").note()
    )
    FolderLock(tmp_path).release()
    (tmp_path / locks.NAME).write_bytes(note.note())
    alive.kill()
    alive.wait()
    FolderLock(tmp_path).release()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_another_host_is_named(tmp_path: Path) -> None:
    (tmp_path / locks.NAME).write_bytes(Owner("far", 7, "2026-01-01 00:00:00 +0000").note())
    with pytest.warns(
        UserWarning,
        match="has no locks: make sure that only one job at a time writes there; the last job .* process 7 on 'far'",
    ):
        FolderLock(tmp_path).release()
