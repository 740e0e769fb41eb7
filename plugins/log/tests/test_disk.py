"""A log disk that is full, slow or gone: training goes on, what is lost is counted and said, and
writing resumes.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import threading
import warnings
from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import PluginError, UsageError

from torchbus_log import files
from torchbus_testing.environments import small_disk
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"


class Limit:
    """The same as a full disk for anybody: no file of this process may grow beyond what it has."""

    def __init__(self, path):
        self.path = path
        self.path.mkdir()
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self):
        (folder,) = (self.path / "logs").iterdir()
        size = max(file.stat().st_size for file in folder.glob("metrics*"))
        # in the middle of a line
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 150, self.before[1]))

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.fixture(params=["disk", "limit"])
def disk(request, tmp_path):
    if request.param == "limit":
        limit = Limit(tmp_path / "disk")
        yield limit
        limit.free()
        return
    with small_disk(tmp_path / "disk", 64) as disk:
        if disk is None:
            pytest.skip("a small disk can't be mounted here")
        yield disk


@pytest.fixture
def heard():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield record


def lines(path):
    (file,) = path.glob("logs/*/metrics-rank0.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def log(s, steps):
    for step in steps:
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 1 / (step + 1)}, step=step, epoch=0, prog_bar=frozenset()
        )


def test_a_disk_that_is_full_for_a_while(disk, heard):
    with session(strategy=None, logger="local", log_dir=disk.path / "logs") as s:
        log(s, range(50))
        disk.fill()
        log(s, range(50, 300))
        s.log_hyperparams(lr=0.1)
        assert "records of this one could not be written" in " ".join(s.explain().split())
        disk.free()
        log(s, range(300, 350))
    told = lines(disk.path)
    steps = [line["step"] for line in told]
    assert (
        steps == sorted(steps)
        and steps[:50] == list(range(50))
        and steps[-50:] == list(range(300, 350))
    )
    lost = 350 - len(steps)
    said = told[-50]["records_lost"]
    assert lost > 100 and said in (lost, lost + 1)  # the configuration may have found room
    (config,) = disk.path.glob("logs/*/config.json")
    assert json.loads(config.read_text())["hyperparams"] == {"lr": 0.1} and not list(
        config.parent.glob("*.new")
    )
    first, last = [str(one.message) for one in heard]
    assert first.startswith("local: a record could not be written into ") and first.endswith(
        "Training continues, and later records are tried"
    )
    assert last.startswith(f"local: {said} of 351 records could not be written into ")


def test_a_disk_that_is_full_from_the_start(tmp_path, heard):
    with small_disk(tmp_path / "disk", 64) as disk:
        if disk is None:
            pytest.skip("a small disk can't be mounted here")
        disk.fill()
        with session(strategy=None, logger="local", log_dir=disk.path / "logs") as s:
            log(s, range(10))
            disk.free()
            log(s, range(10, 20))
        assert [line["step"] for line in lines(disk.path)][-10:] == list(range(10, 20))
        (config,) = disk.path.glob("logs/*/config.json")
        assert json.loads(config.read_text())["world_size"] == 1
    assert "No space left on device" in str(heard[0].message)


def slow(s):
    """From now on whoever opens the file of metrics waits, as on a mount that has gone, until it is
    read.
    """
    (logger,) = (plugin for name, plugin in s._context.bus.plugins() if name == "local")
    path = logger.folder / "metrics-rank0.jsonl"
    os.mkfifo(path)
    return path


def test_a_disk_that_does_not_answer_for_a_while_holds_nothing_up(tmp_path, heard):
    read: list[str] = []
    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        path = slow(s)
        log(s, range(100))
        reader = threading.Thread(target=lambda: read.extend(path.read_text().splitlines()))
        reader.start()
    reader.join()
    assert [json.loads(line)["step"] for line in read] == list(range(100)) and not heard


def test_a_disk_that_never_answers_ends_with_a_count(tmp_path, heard, monkeypatch):
    monkeypatch.setattr(files, "ENDS_WITHIN_S", 0.2)
    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        path = slow(s)
        log(s, range(100))
    (said,) = [str(one.message) for one in heard]
    assert (
        said
        == f"local: 100 of 100 records could not be written into {path.parent}: the disk is too slow"
    )
    path.open("r").close()


def test_a_folder_that_can_not_be_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match=r"local: the folder .*/file/logs/.* can't be created: "
    ) as e:
        session(strategy=None, logger="local", log_dir=tmp_path / "file" / "logs").__enter__()
    assert str(e.value).endswith(
        ": Not a directory. Pass the path of another parent folder as log_dir="
    )


def test_a_disk_that_is_read_only_is_told_at_the_start(tmp_path, heard, monkeypatch):
    def mkdir(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with session(strategy=None, logger="local", log_dir=tmp_path):
        assert "Read-only file system. Training continues" in str(heard[0].message)


def test_a_record_that_is_no_json_is_an_error_of_the_one_who_logs_it(tmp_path):
    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        with pytest.raises(PluginError, match="plugin local failed in metrics_ready: TypeError"):
            s._context.bus.hook.metrics_ready(
                metrics={"loss": object()}, step=1, epoch=0, prog_bar=frozenset()
            )
        log(s, range(3))
    (file,) = tmp_path.glob("*/metrics-rank0.jsonl")
    assert len(file.read_text().splitlines()) == 3


LOOP = SCRIPTS / "small_disk_loop.py"


def test_two_ranks_train_to_the_end_on_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk", 16) as disk:
        if disk is None:
            pytest.skip("a small disk can't be mounted here")
        result = fork_script(LOOP, cwd=tmp_path, timeout_s=110)
    assert result.ok() and result.stdout == "trained 2\n", result.stderr
    assert (
        "records could not be written into disk/logs" in result.stderr
        and "No space left on device" in result.stderr
    )
