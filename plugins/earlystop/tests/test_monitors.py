"""Monitors judge the value that is written, when it is written, equally on all ranks."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

from torchbus_testing.forking import fork_script
from torchbus_testing.recorder import RecordingLogger

LOOP = """
    import json
    import torch
    import torchmetrics
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session
    PER_BATCH = [[1.6, 1.2, 1.0, 0.2], [0.1, 0.1, 0.1, 1.7], [1.1, 1.0, 1.0, 0.1], [1.2, 1.2, 1.15, 0.05]]
    def run(early_stop, log, epochs=4, **options):
        net = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        data = TensorDataset(torch.ones(64, 5))
        with session(strategy="ddp", devices=RANKS, launch="fork", early_stop=early_stop, **options) as s:
            metric = torchmetrics.MeanMetric()
            for epoch in range(epochs):
                net.train()
                for (a,) in DataLoader(data, batch_size=8):
                    optimizer.zero_grad()
                    net(a).square().mean().backward()
                    optimizer.step()
                net.eval()
                with torch.no_grad():
                    for i, (a,) in enumerate(DataLoader(data, batch_size=16)):
                        log(s, epoch, i, metric)
                if s.should_stop:
                    break
            return s.all_gather_object(epoch + 1)
    def per_batch(s, epoch, i, metric, **how):
        s.log("val_loss", PER_BATCH[epoch][i], on_epoch=True, **how)
    def worse(s, epoch, i, metric, **how):
        s.log("val_loss", epoch, on_epoch=True, **how)
    def own(s, epoch, i, metric):  # each rank says another thing: their mean decides
        s.log("val_loss", 10.0 * epoch if s.rank else -float(epoch), on_epoch=True, sync_dist=False)
    def of_object(s, epoch, i, metric):
        metric.update(epoch)
        s.log("val_loss", metric)
    print(json.dumps({
        "means": run("val_loss", per_batch, patience=3),
        "name": run("val_loss", worse, patience=2),
        "name_epoch": run("val_loss_epoch", worse, patience=2),
        "both": run("val_loss", lambda *given: worse(*given, on_step=True), patience=2),
        "own": run("val_loss", own, patience=2),
        "object": run("val_loss", of_object, patience=2),
    }))
"""


@pytest.mark.parametrize("ranks", [2])
def test_values_of_an_epoch(ranks: int) -> None:
    result = fork_script(LOOP.replace("RANKS", str(ranks)))
    assert result.ok()
    ends = json.loads(result.stdout)
    assert ends == {name: [4 if name == "means" else 3] * ranks for name in ends}


def test_ranks_without_a_batch_of_a_divided_evaluation() -> None:
    result = fork_script("""
        import torch
        from torch.utils.data import DataLoader
        from torchbus import session
        net = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with session(strategy="ddp", devices=3, launch="fork", early_stop="val", shard_eval=True, patience=1) as s:
            for epoch in range(4):
                for x in DataLoader(torch.ones(6, 1), batch_size=2):
                    net(x).mean().backward()
                    optimizer.step()
                with torch.no_grad():
                    for x in DataLoader(torch.ones(2, 1), batch_size=2):
                        s.log("val", 1.0, on_epoch=True)
                if s.should_stop:
                    break
            print(s.all_gather_object(epoch))
    """)
    assert result.ok() and result.stdout == "[1, 1, 1]\n"


class Judge:
    """A plugin that monitors a value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[float] = []

    @hookimpl
    def monitored_name(self) -> str:
        return self.name

    @hookimpl
    def monitored_value(self, name: str, value: float) -> None:
        self.values.append(value)


def train(s: object, epochs: int, *, evaluate_every: int = 1) -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x in DataLoader(torch.ones(4, 1), batch_size=2):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
        if (epoch + 1) % evaluate_every == 0:
            with torch.no_grad():
                for x in DataLoader(torch.ones(4, 1), batch_size=1):
                    s.log("val_loss", float(x) + epoch, on_epoch=True)  # type: ignore[attr-defined]
        s.log("mean", 1.0)  # type: ignore[attr-defined]


def test_what_is_judged_is_written() -> None:
    judge, hears = Judge("val_loss"), RecordingLogger()
    with session("log", judge, strategy=None, logger=hears) as s:
        train(s, 3)
    assert judge.values == [1.0, 2.0, 3.0] == [value for _, value in hears.of("val_loss")]


def test_what_the_session_logs_by_itself() -> None:
    judge, hears = Judge("loss"), RecordingLogger()
    with session("log", judge, strategy=None, logger=hears) as s:
        train(s, 3)
    assert judge.values == [value for _, value in hears.of("loss")] and len(judge.values) == 3


@pytest.mark.parametrize("name", ["val_los", "accuracy"])
def test_a_name_that_is_not_logged(name: str) -> None:
    words = rf"monitored, but not logged by the end of the first evaluation: '{name}'.* val_loss\."
    with pytest.raises(UsageError, match=words), session(early_stop=name) as s:
        train(s, 3)


def test_a_misspelt_name_without_an_evaluation() -> None:
    words = "monitored, but not logged by the end of the first epoch: 'means'"
    with pytest.raises(UsageError, match=words), session(early_stop="means") as s:
        train(s, 3, evaluate_every=5)


def test_a_name_that_comes_with_a_late_evaluation(recwarn: pytest.WarningsRecorder) -> None:
    judge = Judge("val_loss")
    with session("log", judge) as s:
        train(s, 5, evaluate_every=4)
    assert judge.values == [4.0] and not recwarn


def test_a_name_that_does_not_come() -> None:
    with (
        pytest.raises(UsageError, match=r"early_stop='val_loss': the session ends, and no value"),
        pytest.warns(UserWarning, match="not logged in the first 10 epochs: 'val_loss'"),
        session(early_stop="val_loss") as s,
    ):
        train(s, 11, evaluate_every=12)


@pytest.mark.parametrize(
    "options", [{"early_stop_strict": False}, {"max_steps": 4}, {"fast_dev_run": True}]
)
def test_a_name_that_may_be_missing_at_the_end(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with session(early_stop="val_loss", **options) as s:
            train(s, 2, evaluate_every=3)


def test_the_end_of_a_session_that_never_logged_the_name() -> None:
    with (
        pytest.warns(
            UserWarning, match=r"not logged in this session.*: 'val'\. Logged names: mean"
        ),
        session(early_stop="val") as s,
    ):
        s.log("mean", 1.0)


def test_after_the_pass() -> None:
    """An evaluation that the loop makes without a loader, or whose mean it takes itself."""
    judge = Judge("val")
    with session("log", judge) as s:
        train(s, 1)
        s.log("val", 3.0, on_epoch=True)
        assert judge.values == [3.0]
        with pytest.raises(UsageError, match="came twice outside of a pass over a DataLoader"):
            s.log("val", 4.0, on_epoch=True)
