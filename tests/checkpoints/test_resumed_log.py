"""A resumed run logs the steps that follow those of the run before, and whole epochs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session

from torchbus_testing.forking import fork_script
from torchbus_testing.recorder import RecordingLogger


def train(folder: Path, dies_after: int | None = None) -> list[int]:
    """The steps under which the loss was logged."""
    torch.manual_seed(0)
    hears, made = RecordingLogger(), 0
    with session(
        checkpoint=str(folder),
        every_n_steps=2,
        async_save=False,
        logger=hears,
        log_every_n_steps=1,
        autolog=False,
    ) as s:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(torch.arange(6.0).reshape(6, 1))
        for _ in s.epochs(2):
            for x in loader:
                optimizer.zero_grad()
                loss = model(x).pow(2).mean()
                loss.backward()
                optimizer.step()
                s.log("loss", loss)
                made += 1
                if made == dies_after:
                    raise KeyError("power cut")
    return [step for step, _ in hears.of("loss")]


def test_steps_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError):
        train(tmp_path / "cut", dies_after=5)
    whole = train(tmp_path / "whole")
    assert capsys.readouterr().err == ""
    resumed = train(tmp_path / "cut")
    assert capsys.readouterr().err == f"torchbus: resumes from {tmp_path / 'cut/step-00000004'}\n"
    assert sorted(set(whole)) == list(range(1, 13))
    assert resumed == whole[-len(resumed) :] and resumed[0] == 5


def test_what_the_ended_run_was_judged_by_is_not_missing(tmp_path: Path) -> None:
    """Started again, it logs only what follows its loop."""

    def run() -> None:
        with session(checkpoint=str(tmp_path), monitor="val") as s:
            weight = torch.nn.Parameter(torch.ones(1))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for epoch in s.epochs(2):
                weight.sum().backward()
                optimizer.step()
                s.log("val", float(epoch))
            s.log("test", 1.0)

    run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


WITHIN_AN_EPOCH = """
import gc, json, torch
from torch.utils.data import DataLoader
from torchbus import session
from torchmetrics import CatMetric, MeanMetric, MetricCollection
from torchbus_testing.recorder import RecordingLogger

gc.freeze()

def run(folder, cut=None, max_steps=None):
    hears, made = RecordingLogger(), 0
    options = {"devices": 2, "launch": "fork", "batch": "global", "seed": 0}
    try:
        with session(
            checkpoint=folder, every_n_steps=2, logger=hears, max_steps=max_steps, **options
        ) as s:
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            metric, several = MeanMetric(), MetricCollection({"all": CatMetric()})
            loader = DataLoader(torch.arange(24.0).reshape(24, 1), 4, shuffle=True)
            for _ in s.epochs(2):
                for x in loader:
                    optimizer.zero_grad()
                    model(x).pow(2).mean().backward()
                    optimizer.step()
                    for reduce in ("mean", "max", "sum"):
                        s.log(reduce, x.mean(), on_epoch=True, reduce=reduce)
                    metric.update(x.mean(), len(x))
                    several.update(x)
                    made += 1
                    if made == cut:
                        raise KeyError
                s.log("metric", metric)
                s.log("number", several.compute()["all"].numel())
                several.reset()
    except KeyError:
        pass
    return {n: hears.of(n)[-1:] for n in ("mean", "max", "sum", "metric", "number")}

run("cut", cut=9)
run("short", max_steps=9)
print(json.dumps([run(how) for how in ("whole", "cut", "short")]))
"""


def test_the_values_of_an_epoch_are_those_of_the_whole_epoch(tmp_path: Path) -> None:
    """A run that resumes in its middle adds to what was logged before, and to its metrics."""
    whole, cut, short = fork_script(WITHIN_AN_EPOCH, cwd=tmp_path).json()
    assert whole["mean"] == [[12, 11.5]] and whole["number"] == [[12, 24.0]]
    assert cut == whole and short == whole


AT_ITS_LAST_STEP = """
import json, torch
from torch.utils.data import DataLoader
from torchbus import session
from torchmetrics import MeanMetric
from torchbus_testing.recorder import RecordingLogger

def run(ranks, folder, cut=None):
    hears, made, read = RecordingLogger(), 0, []
    options = {"devices": ranks, "launch": "fork", "batch": "global", "seed": 0}
    try:
        with session(checkpoint=folder, every_n_steps=6, logger=hears, **options) as s:
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            inside, after, over_epochs = MeanMetric(), MeanMetric(), MeanMetric()
            loader = DataLoader(torch.arange(21.0).reshape(21, 1), 4, shuffle=True)
            valid = DataLoader(torch.arange(5.0).reshape(5, 1), 4)
            for _ in range(3):
                for x in loader:
                    optimizer.zero_grad()
                    model(x).pow(2).mean().backward()
                    optimizer.step()
                    s.log("mean", x.mean(), on_epoch=True)
                    for metric in (inside, after, over_epochs):
                        metric.update(x.mean(), len(x))
                    s.log("inside", inside)
                    made += 1
                    if made == cut:
                        raise KeyError
                s.log("after", after)
                s.log("over_epochs", over_epochs.compute())
                with torch.no_grad():
                    for x in valid:
                        s.log("val", x.mean(), on_epoch=True)
                read.append(s.all_gather_object([s.logged("after"), s.logged("inside")]))
                after.reset()
    except KeyError:
        pass
    found = {n: hears.of(n) for n in ("mean", "inside", "after", "over_epochs", "val")}
    return [found, read]

for ranks in (1, 3):
    print(json.dumps([run(ranks, f"{ranks}{how}", cut) for how, cut in (
        ("whole", None), ("cut", 13), ("cut", None))]))
"""


def test_values_of_an_epoch_whose_last_step_is_in_the_checkpoint(tmp_path: Path) -> None:
    """The resumed run gets no batch of this epoch, and rank 2 repeats one as its last."""
    result = fork_script(AT_ITS_LAST_STEP, cwd=tmp_path)
    assert result.ok(), result
    for line in result.stdout.splitlines():
        (whole, read), (before, _), (resumed, read_again) = json.loads(line)
        assert whole["mean"] == whole["inside"] == [[step, 10.0] for step in (6, 12, 18)]
        assert read_again == read
        for name, values in whole.items():
            again = dict(before[name] + resumed[name])
            assert sorted(again.items()) == [tuple(one) for one in values], name
            assert len(resumed[name]) < len(values), name


def test_a_logged_value_is_there_in_the_resumed_run(tmp_path: Path) -> None:
    """A loop that reads it before it logs it again, and while it is replayed."""

    def run(dies: bool) -> tuple[list[float], float]:
        torch.manual_seed(0)
        read: list[float] = []
        with session(checkpoint=str(tmp_path), logger=RecordingLogger()) as s:
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            for epoch in s.epochs(4):
                if epoch:
                    read.append(s.logged("val"))
                for x in DataLoader(torch.ones(2, 1)):
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                if dies and epoch == 2:
                    raise KeyError("power cut")
                s.log_dict({"val": 10.0 - epoch, "odd": float("nan")})
                plateau.step(s.logged("val"))
            return read, plateau.best

    with pytest.raises(KeyError):
        run(dies=True)
    assert run(dies=False) == ([10.0, 9.0, 8.0], 7.0)
