"""``s.log`` in one process: what loggers hear, and when."""

from __future__ import annotations

import argparse
import json
from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import hookimpl, session
from torchbus.errors import UsageError
from torchmetrics import MeanMetric, MetricCollection

from torchbus_testing.recorder import RecordingLogger

CPU_READS = (
    "item",
    "cpu",
    "numpy",
    "tolist",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__array__",
)


def steps(count: int):
    """So many steps of an optimizer; yields the number of each, from 0, before its step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    for index in range(count):
        yield index
        optimizer.step()


def test_values_are_told_at_log_points_with_their_own_steps():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears, log_every_n_steps=3, autolog=False) as s:
        for index in steps(4):
            s.log("loss", torch.tensor(float(index)), prog_bar=True)
            s.log("n", index)
            if index == 2:
                assert hears.lines == []
        assert hears.lines[:3] == [
            (step, None, {"loss": float(step), "n": float(step)}, frozenset({"loss"}))
            for step in range(3)
        ]
    assert hears.of("loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]


def test_what_follows_a_log_point_in_the_same_step_is_told_at_once():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears, log_every_n_steps=2, autolog=False) as s:
        for _ in steps(2):
            pass
        s.log("late", 1.0)
        assert hears.of("late") == [(2, 1.0)]


class OnDevice(torch.Tensor):
    """A tensor that is not known to be in the host's memory: it is treated as one on a GPU."""


def test_nothing_that_may_be_on_a_device_is_read_in_a_step(monkeypatch):
    """Whatever would wait for a GPU, or copy from it, is not called before a log point."""
    hears = RecordingLogger()
    data = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(strategy=None, logger=hears) as s:
        for (x,) in data:
            optimizer.zero_grad()
            loss = model(x[:, None]).mean().as_subclass(OnDevice)
            loss.backward()
            with monkeypatch.context() as patch:
                for name in CPU_READS:
                    patch.setattr(torch.Tensor, name, _refuse(name))
                s.log("a", loss)
                s.log("b", loss, on_epoch=True, on_step=True, sync_dist=True)
                s.log("c", loss, on_epoch=True, reduce="max", batch_size=2)
                optimizer.step()
    assert [len(hears.of(name)) for name in ("a", "b_step", "b_epoch", "c", "loss")] == [
        3,
        3,
        1,
        1,
        1,
    ]


def _refuse(name):
    def refuse(*args, **kwargs):
        raise AssertionError(f"Tensor.{name} was called in a step")

    return refuse


@pytest.mark.parametrize("kind", [torch.Tensor, OnDevice])
def test_a_value_is_what_it_was_when_it_was_logged(kind):
    hears = RecordingLogger()
    total = torch.zeros(()).as_subclass(kind)
    with session(strategy=None, logger=hears) as s:
        for _ in range(3):
            total += 1
            s.log("total", total)
    assert hears.of("total") == [(0, 1.0), (0, 2.0), (0, 3.0)]


@pytest.mark.parametrize("kind", [torch.Tensor, OnDevice])
def test_no_graph_is_kept(kind):
    hears = RecordingLogger()
    with session(strategy=None, logger=hears) as s:
        weight = torch.ones(1, requires_grad=True)
        graph = (weight * 2).mean().grad_fn
        s.log("x", (weight * 2).mean().as_subclass(kind))
        waiting = s._context.bus.plugins()[-2][1].waiting
        assert graph is not None and all(
            getattr(part, "grad_fn", None) is None for record in waiting for part in record.parts
        )


def test_epoch_means_are_means_over_samples_and_evaluation_waits_for_a_log_point():
    hears = RecordingLogger()
    train, test = (
        DataLoader(TensorDataset(torch.arange(size)), batch_size=4) for size in (9.0, 5.0)
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(strategy=None, logger=hears, autolog=False) as s:
        for _ in range(2):
            for (x,) in train:
                s.log("x", x.mean(), on_epoch=True, prog_bar=True)
                s.log("most", x.max(), on_epoch=True, reduce="max")
                s.log("sum", x.sum(), on_epoch=True, reduce="sum")
                if x[0] == 4:
                    for (y,) in test:  # in the middle of the training pass
                        s.log("y", y.mean(), on_epoch=True)
                model(x[:, None]).mean().backward()
                optimizer.step()
    for name, value in {"x": 4.0, "most": 8.0, "sum": 36.0}.items():
        assert hears.of(name) == [(3, value), (6, value)]
    assert hears.of("y") == [(1, 2.0), (4, 2.0)]
    assert {(epoch, bar) for _, epoch, metrics, bar in hears.lines if "x" in metrics} == {
        (0, frozenset({"x"})),
        (1, frozenset({"x"})),
    }


@dataclass
class Samples:
    names: list[str]
    x: torch.Tensor


@pytest.mark.parametrize(
    "batch",
    [lambda x: Samples(["a"], x), lambda x: UserDict(x=x), lambda x: (["a", "b"], {"x": x})],
    ids=["dataclass", "mapping", "second"],
)
def test_epoch_means_count_the_samples_of_any_batch(batch):
    hears = RecordingLogger()
    with session(strategy=None, logger=hears, log_every_n_steps=100, autolog=False) as s:
        data = DataLoader(
            torch.arange(9.0), batch_size=4, collate_fn=lambda x: batch(torch.stack(x))
        )
        for index, _ in enumerate(data):
            s.log("x", float(index), on_epoch=True)
    assert hears.of("x") == [(0, pytest.approx((0 * 4 + 1 * 4 + 2) / 9))]


def test_a_pass_left_by_break_is_told_by_what_it_had():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears, autolog=False) as s:
        for (x,) in DataLoader(TensorDataset(torch.arange(9.0)), batch_size=2):
            s.log("x", x.mean(), on_epoch=True)
            if x[0] == 2:
                break
        s.log("outside", 7.0, on_epoch=True)
    assert hears.of("x") == [(0, 1.5)] and hears.of("outside") == [(0, 7.0)]


def test_metric_objects_are_computed_at_the_end_of_the_pass():
    hears, metric = RecordingLogger(), MeanMetric()
    with session(strategy=None, logger=hears) as s:
        for _ in range(2):
            for (x,) in DataLoader(TensorDataset(torch.arange(9.0)), batch_size=4):
                metric.update(x)
                s.log("mean", metric)
        metric.update(5.0)
        s.log("outside", metric)
    assert hears.of("mean") == [(0, 4.0), (0, 4.0)] and hears.of("outside") == [(0, 5.0)]


def test_a_collection_of_metrics():
    hears, metrics = RecordingLogger(), MetricCollection({"mean": MeanMetric()}, prefix="val/")
    with session(strategy=None, logger=hears) as s:
        for (x,) in DataLoader(TensorDataset(torch.arange(9.0)), batch_size=4):
            metrics.update(x)
        s.log_dict(metrics)
    assert hears.of("val/mean") == [(0, 4.0)]


@pytest.mark.parametrize("way", ["to its end", "left"])
def test_an_evaluation_in_the_middle_of_an_epoch_begins_none(way, tmp_path):
    """Its name may come late, too: it is another evaluation than the one that is judged."""
    net, epochs = torch.nn.Linear(1, 1), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.ones(8, 1))
    options = {"logger": "local", "log_dir": tmp_path, "log_every_n_steps": 1}
    with session(strategy=None, early_stop="val", **options) as s:
        for epoch in range(2):
            for (x,) in DataLoader(data, batch_size=2):
                net(x).mean().backward()
                optimizer.step()
                s.log("real", epoch)
                with torch.no_grad():
                    for (y,) in DataLoader(data):
                        net(y)
                        if way == "left":
                            break
            s.log("val", 1.0)
    for line in next(tmp_path.glob("*/metrics-rank0.jsonl")).read_text().splitlines():
        found = json.loads(line)
        epochs += [(found["real"], found["epoch"])] if "real" in found else []
    assert epochs == [(0, 0)] * 4 + [(1, 1)] * 4


def test_a_metric_object_is_on_the_progress_bar():
    class Bar:
        @hookimpl(optionalhook=True)
        def metrics_ready(self, metrics, prog_bar):
            on_bar.update({name: name in prog_bar for name in metrics})

    on_bar: dict[str, bool] = {}
    metrics = {"in": MeanMetric(), "hidden": MeanMetric(), "after": MeanMetric()}
    with session(strategy=None, logger=Bar()) as s:
        for (x,) in DataLoader(TensorDataset(torch.arange(9.0)), batch_size=4):
            for metric in metrics.values():
                metric.update(x)
            s.log("in", metrics["in"], prog_bar=True)
            s.log("hidden", metrics["hidden"])
        s.log("after", metrics["after"], prog_bar=True)
    assert on_bar == {"in": True, "hidden": False, "after": True}


def test_a_metric_object_logged_after_the_pass_begins_anew_with_the_next_pass():
    hears, metric, last = RecordingLogger(), MeanMetric(), MeanMetric()
    with session(strategy=None, logger=hears) as s:
        for epoch in range(2):
            for (x,) in DataLoader(TensorDataset(torch.arange(9.0) + epoch), batch_size=4):
                metric.update(x)
            s.log("mean", metric)
            assert metric.compute() == 4.0 + epoch  # still there until the next pass
            s.log("last", last.update(epoch) or last)
            last.reset()  # the script has begun anew itself
            last.update(torch.tensor([7.0]))
            last.update(7.0)
        list(DataLoader(torch.arange(3)))
    assert hears.of("mean") == [(0, 4.0), (0, 5.0)] and last.compute() == 7.0


def test_without_a_logger_nothing_is_gathered_or_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with session(strategy=None) as s:  # with companions of what other tests have imported
        before = s._context.seams.places()
    with session(strategy=None) as s:
        s.log("loss", torch.tensor(1.0), on_epoch=True)
        assert "s.log works; no logger is named, so nothing is written" in s.explain()
        assert s._context.seams.places() == before
    assert list(tmp_path.iterdir()) == []


def test_hyperparameters_of_any_form():
    @dataclass
    class Settings:
        depth: int = 3

    hears = RecordingLogger()
    with session(strategy=None, logger=hears) as s:
        s.log_hyperparams({"lr": 0.1})
        s.log_hyperparams(argparse.Namespace(seed=1))
        s.log_hyperparams(Settings(), note="x")
        with pytest.raises(
            UsageError,
            match=r"s.log_hyperparams\(int\): pass a dict, an argparse.Namespace or a dataclass",
        ):
            s.log_hyperparams(3)
    assert hears.values == [{"lr": 0.1}, {"seed": 1}, {"depth": 3, "note": "x"}]


def epochs(count: int):
    """So many epochs of four steps each; yields the number of each after its pass."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2)
    for epoch in range(count):
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
        yield epoch


@pytest.mark.parametrize("log_every_n_steps", [1, 50])
def test_a_value_of_an_epoch_that_comes_after_its_pass_belongs_to_it(log_every_n_steps):
    hears = RecordingLogger()
    with session(
        strategy=None, logger=hears, autolog=False, log_every_n_steps=log_every_n_steps
    ) as s:
        for epoch in epochs(3):
            s.log("val", float(epoch), on_epoch=True)
            s.log("metric", filled(epoch))
    found = [
        (step, epoch, name, value)
        for step, epoch, metrics, _ in hears.lines
        for name, value in metrics.items()
    ]
    assert sorted(found) == sorted(
        (4 * epoch + 4, epoch, name, float(epoch))
        for epoch in range(3)
        for name in ("val", "metric")
    )


def filled(value: float) -> MeanMetric:
    metric = MeanMetric()
    metric.update(value)
    return metric


def test_a_pass_that_the_loop_leaves_ends_there() -> None:
    """Its values have its step and its epoch, without anything that judges them, too."""
    hears = RecordingLogger()
    with session(logger=hears, autolog=False) as s:
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for epoch in range(3):
            for index, x in enumerate(DataLoader(torch.arange(4.0))):
                optimizer.zero_grad()
                (weight * x).sum().backward()
                optimizer.step()
                s.log("x", x + epoch, on_epoch=True)
                if index == 1:
                    break
    assert hears.of("x") == [(2, 0.5), (4, 1.5), (6, 2.5)]
