"""torchmetrics: a metric is gathered over ranks if what it was fed is divided, and only then."""

from __future__ import annotations

import pytest
from ranks import facts

COMMON = """
        from torchmetrics import CatMetric, MeanMetric, MetricCollection, SumMetric
        from torchmetrics.classification import (BinaryAUROC, MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix,
            MulticlassF1Score, MulticlassPrecision)
        from torchmetrics.regression import MeanSquaredError, R2Score
        from torchmetrics.text import Perplexity
        from torchbus.bus.base import hookimpl

        logged = {}

        class Logger:
            @hookimpl(optionalhook=True)
            def metrics_ready(self, metrics):
                logged.update({name: torch.tensor(value) for name, value in metrics.items()})
            @hookimpl(optionalhook=True)
            def table_ready(self, name, table, step):
                rows = torch.tensor([row[1:] for row in table.rows])
                logged[name] = rows if rows.shape[1] > 1 else rows.squeeze(1)

        def made():
            return {"accuracy": MulticlassAccuracy(3, average="micro"), "by class": MulticlassAccuracy(3, average=None),
                "f1": MulticlassF1Score(3), "auroc": MulticlassAUROC(3), "binned": MulticlassAUROC(3, thresholds=5), "binary": BinaryAUROC(),
                "matrix": MulticlassConfusionMatrix(3), "mean": MeanMetric(), "sum": SumMetric(), "cat": CatMetric(),
                "mse": MeanSquaredError(), "perplexity": Perplexity(), "r2": R2Score(),
                "collection": MetricCollection([MulticlassPrecision(3), MulticlassAccuracy(3)])}

        def feed(metrics, x, y):
            for name in ("accuracy", "by class", "f1", "auroc", "binned", "matrix", "collection"):
                metrics[name].update(x.softmax(1), y)
            metrics["binary"].update(x[:, 0].sigmoid(), (y == 0).long())
            metrics["mean"](x[:, 0], torch.ones(len(x)))  # forward, which computes the batch's too
            for name in ("sum", "cat"):
                metrics[name].update(x[:, 0])
            metrics["perplexity"].update(x[None], y[None])
            metrics["mse"].update(x[:, 0], y.double())
            metrics["r2"].update(x[:, 0], y.double())

        net = nn.Linear(3, 3)

        def data(size):
            return TensorDataset(torch.randn(size, 3), torch.randint(3, (size,)))

        def computed(metrics, size):
            values = {name: one.compute() for name, one in metrics.items() if size > 1 or name != "r2"}
            return values | values.pop("collection")

        def whole(size):
            metrics, dataset = made(), data(size)
            feed(metrics, *dataset.tensors)
            return dataset, computed(metrics, size)

        cases = {size: whole(size) for size in (1, 2, 19, 37)}  # outside of the session

        def differing(size, values):
            expected = dict(cases[size][1])
            got = {name: values.get(name, torch.tensor(float("nan"))) for name in expected}
            got["cat"], expected["cat"] = got["cat"].reshape(-1).sort().values, expected["cat"].reshape(-1).sort().values
            return [name for name in expected if not torch.allclose(got[name].double(), expected[name].double(), atol=1e-7)]
"""
RANKS = [2, pytest.param(3, marks=pytest.mark.slow)]
SETUP = """
        from torchmetrics import CatMetric, MetricCollection, SumMetric
        from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassPrecision, MulticlassRecall

        scores, labels = torch.randn(36, 3), torch.randint(3, (36,))
        wrong = (scores.argmax(1) != labels).sum().item()
        net = nn.Linear(3, 3)
        data = TensorDataset(scores, labels)
        matrix, total, kept = MulticlassConfusionMatrix(3), SumMetric(), CatMetric()

        def feed(x, y):
            matrix.update(x, y)
            total((x.argmax(1) != y).sum())
            kept.update(x[:, 0])

        def read():
            found = [matrix.compute().sum().item(), total.compute().item(), len(kept.compute())]
            for one in (matrix, total, kept):
                one.reset()
            return found
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_metrics_are_those_of_one_process(ranks: int) -> None:
    found = facts(
        SETUP
        + """
        right = [36, wrong, 36]

        @torch.no_grad()
        def evaluate():
            for x, y in DataLoader(data, batch_size=7):
                feed(x, y)
            return read() == right

        @torch.no_grad()
        def collected():
            batches = list(DataLoader(data, batch_size=7))
            feed(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
            return read() == right

        found["evaluation"] = [evaluate(), collected()]
        train, collection = SumMetric(), MetricCollection([MulticlassPrecision(3), MulticlassRecall(3)])
        for step, (x, y) in enumerate(DataLoader(data, batch_size=3)):
            nn.functional.cross_entropy(net(x), y).backward()
            feed(x, y)
            if step == 1:
                inner, mean = SumMetric(), MetricCollection([MulticlassPrecision(3), MulticlassRecall(3)])
                with torch.no_grad():
                    for a, b in DataLoader(data, batch_size=7):
                        inner.update(len(a))
                        mean.update(a, b)
                found["inside"] = inner.compute().item()
                found["whole collection"] = mean.compute()["MulticlassRecall"].item()
            train.update(len(x))
            collection.update(x, y)
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=7):
                pass
        found["training"] = [read() == right, train.compute().item()]
        found["collection"] = collection.compute()["MulticlassRecall"].item()
        whole = MulticlassRecall(3)
        with torch.no_grad():
            feed(scores, labels)
            whole.update(scores, labels)
        found["without a loader"] = read() == right
        found["recall"] = whole.compute().item()
    """,
        ranks=ranks,
    )
    assert found["evaluation"] == [True, True] and found["without a loader"]
    assert found["training"] == [True, 36] and found["inside"] == 36
    assert found["collection"] == found["whole collection"] == pytest.approx(found["recall"])


@pytest.mark.parametrize("ranks", RANKS)
def test_divided_evaluations_are_gathered(ranks: int) -> None:
    found = facts(
        SETUP
        + """
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=7):
                feed(x, y)
            found["in the pass"] = [read(), wrong]
            batches = list(DataLoader(data, batch_size=7))
            feed(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
            found["after it"] = [read(), wrong]
            for x, y in DataLoader(TensorDataset(scores[:1], labels[:1]), batch_size=7):
                total.update(len(x))  # the other ranks get nothing
            found["one sample"] = total.compute().item()
    """,
        options="shard_eval=True",
        ranks=ranks,
    )
    for values, wrong in (found["in the pass"], found["after it"]):
        assert values == [36, wrong, 36]
    assert found["one sample"] == 1


@pytest.mark.parametrize("options", ["", "shard_eval=True, "])
def test_a_monitored_metric_is_not_reduced_once_more(options: str) -> None:
    """It is judged and written as it is: by itself it is that of all ranks."""
    found = facts(
        """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        metrics = {"in": MeanMetric(), "val": MeanMetric()}
        for epoch in range(2):
            for (x,) in DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2):
                net(x).mean().backward()
                optimizer.step()
            with torch.no_grad():
                for (x,) in DataLoader(TensorDataset(torch.arange(12.0) + epoch), batch_size=2):
                    for name, metric in metrics.items():
                        metric.update(x)
                    s.log("in", metrics["in"])
            s.log("val", metrics["val"])
        found["judged"] = s.all_gather_object(judged)
        """,
        options=options + 'logger=Logger(), early_stop="val", patience=9',
        before="""
        from torchmetrics import MeanMetric
        from torchbus import hookimpl
        judged = {"in": [], "val": []}
        class Logger:
            @hookimpl(optionalhook=True)
            def monitored_name(self):
                return "in"
            @hookimpl(optionalhook=True)
            def monitored_value(self, name, value):
                judged[name].append(value)
            @hookimpl(optionalhook=True)
            def metrics_ready(self, metrics):
                found.update({f"{name} {value}": 1 for name, value in metrics.items() if name in judged})
        """,
        ranks=3,
    )
    assert found.pop("judged") == [{"in": [5.5, 6.5], "val": [5.5, 6.5]}] * 3
    assert sorted(found) == ["in 5.5", "in 6.5", "val 5.5", "val 6.5"]


def test_shares_and_whole_batches_in_one_metric_are_refused() -> None:
    found = facts(
        SETUP
        + """
        from torchbus.errors import UsageError
        for x, y in DataLoader(data, batch_size=3):
            net(x).sum().backward()
            total(len(x))
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=3):
                total(len(x))
        try:
            total.compute()
        except UsageError as error:
            found["refused"] = str(error)
    """
    )
    assert found["refused"].startswith("this SumMetric was updated with batches that are divided")


def test_where_no_batch_is_divided_nothing_is_gathered() -> None:
    found = facts(
        SETUP
        + """
        for x, y in DataLoader(data, batch_size=4):
            nn.functional.cross_entropy(net(x), y).backward()
            feed(x, y)
        found["training"] = [read(), wrong]
    """,
        strategy="dp",
    )
    values, wrong = found["training"]
    assert values == [36, wrong, 36]


def test_metrics_from_before_the_block_and_s_log() -> None:
    found = facts(
        """
        with torch.no_grad():
            for (x,) in DataLoader(TensorDataset(torch.ones(36)), batch_size=7):
                early.update(x.sum())
                logged.update(x.sum())
                s.log("logged", logged)
        found["early"] = early.compute().item()
    """,
        options="logger=Logger()",
        before="""
        from torchmetrics import SumMetric
        from torchbus.bus.base import hookimpl
        early, logged = SumMetric(), SumMetric()

        class Logger:
            @hookimpl(optionalhook=True)
            def metrics_ready(self, metrics):
                found.update(metrics)
    """,
    )
    assert found["early"] == found["logged"] == 36


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("options", ["logger=Logger()", "logger=Logger(), shard_eval=True"])
def test_common_metrics_are_those_of_one_process(ranks: int, options: str) -> None:
    """Training and evaluation have a ragged end: there some ranks repeat a batch, or have none."""
    found = facts(
        """
        for name, size, batch_size in (("training", 37, 4), ("evaluation", 19, 2)):
            metrics, dataset = made(), cases[size][0]
            with torch.set_grad_enabled(name == "training"):
                for x, y in DataLoader(dataset, batch_size=batch_size):
                    if name == "training":
                        nn.functional.cross_entropy(net(x), y).backward()
                    feed(metrics, x, y)
                    for one, metric in metrics.items():
                        s.log(one, metric)
            for x, y in DataLoader(data(8), batch_size=1):
                nn.functional.cross_entropy(net(x), y).backward()  # its end is a log point
            found[name] = [differing(size, logged), len(logged)]
            logged.clear()
    """,
        options,
        before=COMMON,
        ranks=ranks,
    )
    assert found["training"][0] == found["evaluation"][0] == [] and found["training"][1] >= 15


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_without_samples_of_a_metric(ranks: int) -> None:
    found = facts(
        """
        for size in (1, 2):
            metrics = made()
            with torch.no_grad():
                for x, y in DataLoader(cases[size][0], batch_size=1):
                    feed(metrics, x, y)
                found[size] = differing(size, computed(metrics, size))
    """,
        "shard_eval=True",
        before=COMMON,
        ranks=ranks,
    )
    assert found == {"1": [], "2": []}
