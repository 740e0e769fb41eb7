"""Logged values, read back by TensorBoard."""

from __future__ import annotations

import math
import re
import time
import warnings

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torchbus import session
from torchbus.errors import UsageError

from torchbus_log.trackers import tracker
from torchbus_tensorboard.logger import TensorBoardLogger
from torchbus_testing.environments import small_disk


@pytest.mark.timeout(600)
def test_what_is_logged_is_what_tensorboard_shows(tmp_path):
    logger = TensorBoardLogger(root=tmp_path, finish_timeout_s=500)
    with session(logger, strategy=None) as s:
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 0.5, "nan": math.nan}, step=3, epoch=None, prog_bar=frozenset()
        )
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 0.25}, step=6, epoch=1, prog_bar=frozenset()
        )
        s._context.bus.hook.hyperparameters(values={"lr": 0.1, "net": torch.nn.ReLU})
        s._context.bus.hook.system_metrics(metrics={"gpu0_memory_GiB": 2.0}, time_s=7.5)
        logger.experiment.add_scalar("own", 1.0, 0)
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    told = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    assert math.isnan(told.pop("nan")[0][1])
    assert told == {
        "loss": [(3, 0.5), (6, 0.25)],
        "epoch": [(6, 1.0)],
        "system/gpu0_memory_GiB": [(7, 2.0)],
        "own": [(0, 1.0)],
    }
    assert b"torch.nn.modules.activation.ReLU" in next(folder.iterdir()).read_bytes()


def test_runs_of_one_second_have_separate_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20261130-120000")
    for _ in range(2):
        with session(TensorBoardLogger(root=tmp_path)):
            pass
    found = sorted(one.name for one in tmp_path.iterdir())
    assert found == ["20261130-120000", "20261130-120000-2"]


def test_the_root_is_a_path():
    with pytest.raises(UsageError, match="root=3 is an int: it must be a path"):
        TensorBoardLogger(root=3)


def sent(logger, s, steps):
    """Log a value at each step, and wait until the tracker's thread has written it."""
    for step in steps:
        s._context.bus.hook.metrics_ready(
            metrics={"loss": float(step)}, step=step, epoch=None, prog_bar=frozenset()
        )
        while logger._calls.done < logger._calls.made:
            time.sleep(0.001)


def begun(file):
    """Return the second, and the number of the writer in this process, to sort files by number:
    TensorBoard sorts them as text, with 10 before 9.
    """
    second, number = file.name.split(".")[3], file.name.split(".")[-1]
    return int(second), int(number)


def steps_in(file):
    events = EventAccumulator(str(file))
    events.Reload()
    return (
        [event.step for event in events.Scalars("loss")]
        if "loss" in events.Tags()["scalars"]
        else []
    )


@pytest.mark.timeout(600)
# TensorBoard's thread raises
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("told_by", ["the disk", "the client"])
def test_a_full_disk_loses_some_values_and_not_those_after_it(tmp_path, monkeypatch, told_by):
    """Also if the system does not report the free space (a quota): then the client fails, and
    starts another file.
    """
    with small_disk(tmp_path / "disk", 256) as disk:
        if disk is None:
            pytest.skip("a small disk can't be mounted here")
        if told_by == "the client":
            monkeypatch.setattr(tracker, "has_room", lambda folder: True)
        logger = TensorBoardLogger(root=disk.path / "runs", finish_timeout_s=500)
        with warnings.catch_warnings(record=True) as heard, session(logger, strategy=None) as s:
            warnings.simplefilter("always")
            sent(logger, s, range(5))
            disk.fill()
            sent(logger, s, range(5, 205))
            disk.free()
            sent(logger, s, range(205, 505))
        (folder,) = (disk.path / "runs").iterdir()
        steps = [step for file in sorted(folder.iterdir(), key=begun) for step in steps_in(file)]
    assert steps[:5] == list(range(5)) and steps[-30:] == list(range(475, 505))
    said = next(str(one.message) for one in heard if "calls failed" in str(one.message))
    failed, dropped = (
        int(number)
        for number in re.search(r"(\d+) of \d+ calls failed .*, (\d+) were not made", said).groups()
    )
    assert "No space left on device" in said and len(steps) <= 505 - dropped
    if told_by == "the disk":
        assert (failed, dropped) == (200, 0) and steps[5:] == list(range(205, 505))
    else:
        assert failed >= 5 and dropped > 100
