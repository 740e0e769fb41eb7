"""The logger that needs no client: rows, new columns, and resumed runs."""

from __future__ import annotations

import csv
import errno
import json
import math
import time
from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import UsageError

from torchbus_log.trackers import tracker
from torchbus_testing.environments import small_disk
from torchbus_trackers.csv import CSVLogger, CsvTable

pytestmark = [pytest.mark.timeout(300)]


def rows(path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def logged(logger, steps, name="loss") -> None:
    with session(logger, strategy=None) as s:
        for step in steps:
            s._context.bus.hook.metrics_ready(
                metrics={name: step / 3}, step=step, epoch=None, prog_bar=frozenset()
            )


def test_two_ranks_have_one_folder(tmp_path, log, values):
    pytest.importorskip("torchbus_ddp")
    told = log("CSVLogger", {"name": "first"}, ranks=2)
    (folder,) = (tmp_path / "csv-logs").iterdir()
    assert told["id"] == folder.name == "first"
    read = rows(folder / "metrics.csv")
    assert list(read[0]) == ["step", "epoch", "rank0", "train/acc@1", "bad"]
    assert [(int(row["step"]), float(row["rank0"])) for row in read] == values
    assert [row["bad"] for row in read if row["bad"]] == ["nan"]
    assert rows(folder / "system.csv") == [{"time_s": "2.5", "gpu_percent": "50.0"}]
    config = json.loads((folder / "config.json").read_text())
    assert config["hyperparameters"] == {"lr": 0.1, "net": {"width": 64}, "api_key": "(hidden)"}
    assert config["torchbus"]["world_size"] == 2


def test_a_run_that_goes_on_replaces_what_it_logs_again(tmp_path):
    """Values of its first step that it does not log again stay: the first run has logged them."""
    first = CSVLogger(root=tmp_path, name="run")
    with session(first, strategy=None) as s:
        for step in range(1, 8):
            for name in ("loss", "mean"):
                one = {name: step / 3}
                s._context.bus.hook.metrics_ready(
                    metrics=one, step=step, epoch=None, prog_bar=frozenset()
                )
    logged(CSVLogger(root=tmp_path, resume="run"), [5, 5, 6, 9], "mean")
    read = rows(tmp_path / "run" / "metrics.csv")
    assert [int(row["step"]) for row in read] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 9]
    assert [row["loss"] != "" for row in read] == [True, False] * 4 + [True] + [False] * 4
    assert float(read[-1]["mean"]) == 9 / 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_other_values_of_a_row_stay(tmp_path):
    table = CsvTable(tmp_path / "m.csv", ["step"])
    for step in (1, 2, 3):
        table.add({"step": step, "a": step, "b": -step})
    table = CsvTable(tmp_path / "m.csv", ["step"])
    table.cut("step", 2, ["b", "new"])
    table.add({"step": 2, "b": 7, "new": 8})
    assert [tuple(row.values()) for row in rows(tmp_path / "m.csv")] == [
        ("1", "1", "-1", ""),
        ("2", "2", "", ""),
        ("2", "", "7", "8"),
    ]


def test_two_runs_of_one_name_have_two_folders(tmp_path):
    for _ in range(2):
        logged(CSVLogger(root=tmp_path, name="run"), [1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]


def test_a_run_that_is_not_there_does_not_go_on(tmp_path):
    with pytest.warns(UserWarning, match="csv did not start, nothing is sent to it: .*'other'"):
        logged(CSVLogger(root=tmp_path, resume="other"), [1])


def test_a_row_is_whole_or_not_there(tmp_path):
    """The part of a row that a crash or a full disk has left is cut off."""
    table = CsvTable(tmp_path / "m.csv", ["step"])
    table.add({"step": 1, "a": 0.1})
    with open(tmp_path / "m.csv", "a") as file:
        file.write("2,0.")
    table.add({"step": 2, "a": math.inf, "b": 'x,"y"'})
    assert rows(tmp_path / "m.csv") == [
        {"step": "1", "a": "0.1", "b": ""},
        {"step": "2", "a": "inf", "b": 'x,"y"'},
    ]


def test_a_column_that_a_full_disk_refused_is_written_later(tmp_path, monkeypatch):
    table = CsvTable(tmp_path / "m.csv", ["step"])
    table.add({"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", _no_space)
        with pytest.raises(OSError):
            table.add({"step": 2, "b": 1.0})
    table.add({"step": 3})
    table.add({"step": 4, "b": 2.0})
    assert [tuple(row.values()) for row in rows(tmp_path / "m.csv")] == [
        ("1", ""),
        ("3", ""),
        ("4", "2.0"),
    ]


def _no_space(path, content):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_rest_of_a_row_that_a_killed_process_has_left_is_cut_off(tmp_path):
    table = CsvTable(tmp_path / "m.csv", ["step"])
    table.add({"step": 1, "a": 0.1})
    with open(tmp_path / "m.csv", "a") as file:
        file.write("2,0.")
    table = CsvTable(tmp_path / "m.csv", ["step"])
    table.add({"step": 2, "a": 0.2})
    assert [row["a"] for row in rows(tmp_path / "m.csv")] == ["0.1", "0.2"]


@pytest.mark.parametrize("told_by", ["the disk", "the client"])
def test_a_full_disk_loses_some_rows_and_not_those_after_it(tmp_path, monkeypatch, told_by):
    with small_disk(tmp_path / "disk", 256) as disk:
        if disk is None:
            pytest.skip("a small disk can't be mounted here")
        if told_by == "the client":
            monkeypatch.setattr(tracker, "has_room", lambda folder: True)
        logger = CSVLogger(root=disk.path / "runs", name="run")
        with pytest.warns(UserWarning, match="calls failed"), session(logger, strategy=None) as s:
            for step in range(300):
                if step == 5:
                    disk.fill()
                if step == 150:
                    disk.free()
                s._context.bus.hook.metrics_ready(
                    metrics={f"layer{layer}": 1 / 3 for layer in range(20)},
                    step=step,
                    epoch=None,
                    prog_bar=frozenset(),
                )
                while logger._calls.done < logger._calls.made:
                    time.sleep(0.001)
        steps = [int(row["step"]) for row in rows(disk.path / "runs" / "run" / "metrics.csv")]
    assert steps[:5] == list(range(5)) and steps == sorted(steps)
    assert steps[-50:] == list(range(250, 300))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": 3}, "root=3 is an int: it must be a path"),
        ({"name": 3}, "name=3 is an int: it must be a text"),
        ({"resume": True}, "resume=True is a bool: it must be the run_id of an earlier run"),
    ],
)
def test_options_have_types(options, message):
    with pytest.raises(UsageError, match=message):
        CSVLogger(**options)
