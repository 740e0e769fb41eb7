"""Manners in a folder: one job at a time, nothing left of dead ones, nothing stopped by what can't be read."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn
from torchbus import session
from torchbus._files import locks

from torchbus_checkpoint import CheckpointError, latest
from torchbus_checkpoint.disk import folder, leftovers
from torchbus_checkpoint.folder_lock import lock
from torchbus_checkpoint.folder_lock.lock import FolderLock
from torchbus_checkpoint.folder_lock.owner import Owner

TRAIN = """
import os, signal, sys, time, torch
from torch import nn
from torchbus import session
ranks, deadly = int(sys.argv[1]), len(sys.argv) > 2
with session(strategy="ddp" if ranks > 1 else None, devices=ranks, accelerator="cpu", launch="fork", checkpoint="all", every_n_steps=1) as s:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in s.epochs(6):
        (weight * 2.0).sum().backward()
        optimizer.step()
        if deadly and step == 3 and s.rank == 0:
            if os.fork() == 0:  # as a loader's worker, which lives on for a while
                os.setsid()
                open("child", "w").write(str(os.getpid()))
                while not os.path.exists("end"):
                    time.sleep(0.01)
                os._exit(0)
            while not os.path.exists("child"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
print("begun at", s.explain().count("resumed from"), "ended at", step)
"""


def train(s: Any, count: int = 3) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in s.epochs(count):
        (weight * 2.0).sum().backward()
        optimizer.step()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with three checkpoints."""
    with session(checkpoint=tmp_path / "all", every_n_steps=1) as s:
        train(s)
    assert [one.name for one in folder.found(tmp_path / "all")] == ["step-00000001", "step-00000002", "step-00000003"]
    return tmp_path / "all"


# Two jobs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_job_in_a_folder_is_refused(run: Any, tmp_path: Path, ranks: int) -> None:
    with session(checkpoint=tmp_path / "all", every_n_steps=1) as s:
        second = run(TRAIN, ranks, folder=tmp_path)
        train(s)
    words = f"another job writes its checkpoints to {tmp_path / 'all'}: process {os.getpid()} on {os.uname().nodename!r}, since 2"
    assert second.status == 1 and words in second.stderr and "Wait for its end, or use another folder" in second.stderr
    assert len(folder.found(tmp_path / "all")) == 3
    assert not (tmp_path / "all" / lock.NAME).exists()
    assert "ended at 5" in run(TRAIN, ranks, folder=tmp_path).ok().stdout


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_job_goes_on_at_once(run: Any, tmp_path: Path, ranks: int) -> None:
    """Though a process that it has forked is alive still."""
    try:
        assert run(TRAIN, ranks, "deadly", folder=tmp_path).status == -signal.SIGKILL
        assert (tmp_path / "all" / lock.NAME).exists()
        os.kill(int((tmp_path / "child").read_text()), 0)
        assert "begun at 1 ended at 5" in run(TRAIN, ranks, folder=tmp_path).ok().stdout
    finally:
        (tmp_path / "end").touch()
    assert not (tmp_path / "all" / lock.NAME).exists()


def test_a_lock_is_released_by_errors_too(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), session(checkpoint=tmp_path / "all") as s:
            s.epochs(1)
            raise KeyError
    assert not (tmp_path / "all").exists()  # nothing was written


def test_a_lock_whose_note_is_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)
    for note in (b"", b"\xff", b"[" * 9000, b"null", b'{"host": 1, "pid": -1, "since": 2}', b'{"pid": 1}'):
        (tmp_path / lock.NAME).write_bytes(note)
        held = FolderLock(tmp_path)
        (tmp_path / lock.NAME).write_bytes(note)
        with pytest.raises(CheckpointError, match="it has not said which"):
            FolderLock(tmp_path)
        held.release()


def test_a_lock_that_was_removed_is_another_one(tmp_path: Path) -> None:
    """By hand, where a host is gone for good; the release of the first does not free the second's."""
    first = FolderLock(tmp_path)
    (tmp_path / lock.NAME).unlink()
    second = FolderLock(tmp_path)
    first.release()
    assert (tmp_path / lock.NAME).exists()
    second.release()
    assert not (tmp_path / lock.NAME).exists()


def test_a_lock_that_ends_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was opened has lost its name by the time it is locked: a third job would make a new one."""
    first = FolderLock(tmp_path)

    def try_lock(descriptor: int) -> bool | None:
        first.release()
        return locks.try_lock(descriptor)

    monkeypatch.setattr(lock, "try_lock", try_lock)
    monkeypatch.setattr(lock, "PATIENCE_S", 0.2)
    second = FolderLock(tmp_path)
    with pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
        FolderLock(tmp_path)
    second.release()


def test_a_folder_that_nothing_can_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = "nothing can be written to this folder: (File exists|Not a directory)"
    with pytest.raises(CheckpointError, match=words), session(checkpoint=tmp_path / "file"):
        pass


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre without ``-o flock``, which no test can mount."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_note_counts_on_one_host(tmp_path: Path) -> None:
    alive = subprocess.Popen(["sleep", "60"])
    here = Owner.here()
    note = Owner(here.host, alive.pid, here.since)
    (tmp_path / lock.NAME).write_bytes(note.note())
    with pytest.raises(CheckpointError, match=rf"process {alive.pid} on '{here.host}', since"):
        FolderLock(tmp_path)
    (tmp_path / lock.NAME).write_bytes(Owner(here.host, alive.pid, here.since, "another process had this number").note())
    FolderLock(tmp_path).release()
    (tmp_path / lock.NAME).write_bytes(note.note())
    alive.kill()
    alive.wait()
    FolderLock(tmp_path).release()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_another_host_is_named(tmp_path: Path) -> None:
    (tmp_path / lock.NAME).write_bytes(Owner("far", 7, "2026-01-01 00:00:00 +0000").note())
    with pytest.warns(UserWarning, match="has no locks: see to it that no two jobs write there at once; the last job .* process 7 on 'far'"):
        FolderLock(tmp_path).release()


# Leftovers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=14", "none", place], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("what", ["room", "inodes"])
def test_leftovers_on_a_full_disk_make_room(small_disk: Path, what: str) -> None:
    parent = small_disk / "all"
    left = parent / ".step-00000004.4.partial"
    left.mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        for number in range(100):
            (left / f"{number}").write_bytes(bytes(400_000 if what == "room" else 0))
    with session(checkpoint=parent, every_n_steps=1, keep=1) as s:
        train(s)
    assert os.listdir(parent) == ["step-00000003"]


def test_leftovers_of_save(tmp_path: Path) -> None:
    """Of ``s.save`` in a folder that is nobody's: those of dead processes only."""
    with session() as s:
        train(s)
        s.save(tmp_path / "mine")
        alive, dead, other = (tmp_path / name for name in (".mine.8.partial", ".mine.9.partial", ".mine.own"))
        for path in (alive, dead, other, tmp_path / ".mine.trash"):
            path.mkdir()
        with leftovers.claimed(alive) as claimed:
            assert claimed
            s.save(tmp_path / "mine")
            assert sorted(os.listdir(tmp_path)) == [".mine.8.partial", ".mine.own", "mine"]
        os.replace(tmp_path / "mine", tmp_path / ".mine.previous")  # killed between two renames
        s.load(tmp_path / "mine")
    assert sorted(os.listdir(tmp_path)) == [".mine.own", "mine"]


def test_one_that_can_not_be_removed_ends_no_training(tmp_path: Path) -> None:
    words = "step-00000001, which keep=... does not keep, can't be removed: Not a directory"
    with pytest.warns(UserWarning, match=words), session(checkpoint=tmp_path, every_n_steps=1, keep=1) as s:
        (tmp_path / ".step-00000001.trash").touch()
        train(s)
    assert [one.name for one in folder.found(tmp_path)] == ["step-00000001", "step-00000003"]


def test_checkpoints_that_are_links(written: Path, tmp_path: Path) -> None:
    """Moved to another disk: gone on from; one that ``keep`` does not keep is unlinked, and what it led to stays."""
    for name in ("step-00000002", "step-00000003"):
        (written / name).rename(tmp_path / name)
        (written / name).symlink_to(tmp_path / name)
    with warnings.catch_warnings(), session(checkpoint=written, every_n_steps=1, keep=1) as s:
        warnings.simplefilter("error")
        train(s, 6)
    assert [one.name for one in folder.found(written)] == ["step-00000006"] and not list(written.glob(".*trash"))
    assert len(folder.found(tmp_path)) == 2


# What can't be read ------------------------------------------------------------------------------------------------


def in_its_place(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


WAYS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (in_its_place(Path.mkdir), "a folder in its place"),
    "a pipe": (in_its_place(os.mkfifo), "no regular file"),
    "a link to itself": (in_its_place(lambda path: path.symlink_to(path)), "Too many levels of symbolic links"),
}
MANIFESTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "EIO": (in_its_place(lambda path: path.symlink_to("/proc/self/mem")), "Input/output error"),
    "deep": (lambda path: path.write_text("[" * 200_000), "it is too deep"),
    "null": (lambda path: path.write_text("null"), "can't be read"),
    "a list": (lambda path: path.write_text("[1]"), "can't be read"),
    "long": (lambda path: os.truncate(path, 1 << 40), "it is longer than"),
}


@pytest.mark.parametrize("name", ["training.pt", "rank-0.pt", "manifest.json"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_can_not_be_read_is_passed_over_by_name(written: Path, name: str, way: str) -> None:
    change, words = WAYS[way]
    change(written / "step-00000003" / name)
    with pytest.warns(UserWarning, match=rf"step-00000003 .*{name}.*{words}.*: resuming from .*step-00000002"), session(checkpoint=written) as s:
        train(s)
    assert folder.verify(written / "step-00000003")["step"] == 3


@pytest.mark.parametrize("way", MANIFESTS)
def test_a_manifest_that_can_not_be_read_is_passed_over_by_name(written: Path, way: str) -> None:
    change, words = MANIFESTS[way]
    change(written / "step-00000003" / "manifest.json")
    with pytest.warns(UserWarning, match=rf"step-00000003 .*manifest.json.*{words}.*: resuming from .*step-00000002"):
        assert latest(written) == written / "step-00000002"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("what", ["step-00000003", "step-00000003/training.pt", "step-00000003/manifest.json"])
def test_what_belongs_to_somebody_else_is_passed_over_by_name(run: Any, written: Path, what: str) -> None:
    script = """
        import os, sys, warnings
        from pathlib import Path
        warnings.simplefilter("always")
        from torchbus_checkpoint import latest
        parent, what = sys.argv[1:]
        os.chmod(os.path.join(parent, what), 0)
        os.chmod(parent, 0o777)
        for one in list(Path(parent).parents)[:-2]:
            os.chmod(one, 0o755)
        os.setgid(65534), os.setuid(65534)
        print(latest(parent).name)
    """
    found = run(dedent(script), written, what, folder=written.parent).ok()
    assert found.stdout == "step-00000002\n" and "step-00000003" in found.stderr and "Permission denied" in found.stderr


@pytest.mark.parametrize(("key", "value"), [
    ("files", None), ("files", {}), ("files", {"../training.pt": {"bytes": 1, "sha256": ""}}), ("files", {"training.pt": None}),
    ("world_size", -1), ("world_size", "1"), ("step", "3"), ("step", -1), ("step", True), ("batches_per_step", 0.5),
])  # fmt: skip
def test_a_manifest_that_holds_odd_things(written: Path, key: str, value: Any) -> None:
    """Its checksum fits: somebody has made it."""
    path = written / "step-00000003" / "manifest.json"
    content = json.loads(path.read_text()) | {key: value}
    del content["sha256"]
    path.write_text(json.dumps(content | {"sha256": folder._digest(content)}))
    if value == {}:
        with pytest.raises(CheckpointError, match="step-00000003 has no rank-0.pt"), session(checkpoint=written) as s:
            train(s)
        return
    with pytest.warns(UserWarning, match=r"step-00000003 is damaged: manifest.json can't be read \("):
        assert latest(written) == written / "step-00000002"


def test_a_folder_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "all").symlink_to(tmp_path / "all")
    with pytest.raises(CheckpointError, match="the folder .*all can't be read: Too many levels"):
        latest(tmp_path / "all")


def test_the_order_is_that_of_the_numbers(written: Path) -> None:
    shutil.copytree(written / "step-00000003", written / "step-100000000")
    shutil.copytree(written / "step-00000002", written / "step-99999999")
    assert [one.name for one in folder.found(written)][-2:] == ["step-99999999", "step-100000000"]
