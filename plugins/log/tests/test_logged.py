"""``s.logged``: the loop reads what loggers get, the same number on all ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection
from torchmetrics.classification import BinaryAUROC

from torchbus_testing.forking import fork_script
from torchbus_testing.recorder import RecordingLogger

LOOP = """
import json, sys, torch
from torchbus import session
from torch.utils.data import DataLoader
from torchbus_testing.recorder import RecordingLogger
found = []
for options in ({"logger": True}, {"early_stop": "val"}):
    if "logger" in options:
        options["logger"] = recorded = RecordingLogger()
    with session(strategy="ddp", devices=2, launch="fork", **options) as s:
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        for epoch in range(2):
            for x in DataLoader(torch.arange(10.0).view(-1, 1), batch_size=2):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
                s.log("train", x.mean(), on_epoch=True)
            with torch.no_grad():
                for x in DataLoader(torch.arange(5.0).view(-1, 1), batch_size=2):
                    s.log("val", (1 + s.rank) * x.mean() + epoch, on_epoch=True)
            plateau.step(s.logged("val"))
            found.append([s.all_gather_object(s.logged("val")), plateau.best])
            if "logger" in options:
                found[-1].append(s.all_gather_object(s.logged("train")))
        s.log("sum", s.rank + 1.0, reduce="sum", sync_dist=True)
        if "logger" in options:
            found.append(s.all_gather_object(s.logged("sum")))
print(json.dumps([found, recorded.of("val")]))
"""


def test_an_epochs_value_is_the_same_on_all_ranks() -> None:
    found, written = json.loads(fork_script(LOOP).ok().stdout)
    assert found == [
        [[3.0, 3.0], 3.0, [4.5, 4.5]],
        [[4.0, 4.0], 3.0, [4.5, 4.5]],
        [3.0, 3.0],
        [[3.0, 3.0], 3.0],
        [[4.0, 4.0], 3.0],
    ]
    assert [value for _, value in written] == [3.0, 4.0]


def test_in_a_trial_and_of_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with session(logger="local", fast_dev_run=True) as s:
        metric = MeanMetric()
        for x in DataLoader(torch.arange(4.0), batch_size=2):
            metric.update(x)
            s.log("mean", metric)
        assert s.logged("mean") == 0.5
        s.log("loss", torch.tensor(2.0))
        assert s.logged("loss") == 2.0


def test_a_name_without_a_value(tmp_path: Path) -> None:
    with session(logger="local", log_dir=tmp_path) as s:
        s.log("loss", 1.0)
        words = r"^s\.logged\('val'\): there is no value of this name yet. Logged names: loss$"
        with pytest.raises(UsageError, match=words):
            s.logged("val")
    with session() as s:
        s.log("loss", 1.0)
        with pytest.raises(UsageError, match=r"^s\.logged\('loss'\) without a logger: .*'local'$"):
            s.logged("loss")


@pytest.mark.parametrize("calls", [False, True])
def test_a_metric_that_is_updated_with_a_graph(calls: bool) -> None:
    """torchmetrics keeps the outputs themselves, in a collection too."""
    hears = RecordingLogger()
    with session(strategy=None, logger=hears) as s:
        net = torch.nn.Linear(2, 1)
        metrics = MetricCollection({"auroc": BinaryAUROC(), "mse": MeanSquaredError()})
        for x in DataLoader(torch.arange(8.0).reshape(4, 2) / 8, batch_size=2):
            out, target = net(x).sigmoid().flatten(), torch.tensor([0, 1])
            out.mean().backward(retain_graph=True)
            (metrics if calls else metrics.update)(out, target)
        expected = metrics.compute()
        s.log_dict(metrics)
    for name, value in expected.items():
        assert [one for _, one in hears.of(name)] == [pytest.approx(value.item())]
