"""Scalars, read back as TensorBoard reads them."""

from __future__ import annotations

import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torchbus import session
from torchbus.errors import UsageError

from torchbus_tensorboard import TensorBoardLogger


@pytest.mark.timeout(600)
def test_what_is_logged_is_what_tensorboard_shows(tmp_path):
    logger = TensorBoardLogger(root=tmp_path, finish_timeout_s=500)
    with session(logger, strategy=None) as s:
        s.bus.hook.metrics_ready(metrics={"loss": 0.5, "nan": math.nan}, step=3, epoch=None, prog_bar=frozenset())
        s.bus.hook.metrics_ready(metrics={"loss": 0.25}, step=6, epoch=1, prog_bar=frozenset())
        s.bus.hook.hyperparameters(values={"lr": 0.1, "net": torch.nn.ReLU})
        s.bus.hook.system_metrics(metrics={"gpu0_memory_GiB": 2.0}, time_s=7.5)
        logger.experiment.add_scalar("own", 1.0, 0)
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    told = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert math.isnan(told.pop("nan")[0][1])
    assert told == {"loss": [(3, 0.5), (6, 0.25)], "epoch": [(6, 1.0)], "system/gpu0_memory_GiB": [(7, 2.0)], "own": [(0, 1.0)]}
    assert b"torch.nn.modules.activation.ReLU" in next(folder.iterdir()).read_bytes()


def test_the_root_is_a_path():
    with pytest.raises(UsageError, match="root=3 is a int: it must be a path"):
        TensorBoardLogger(root=3)
