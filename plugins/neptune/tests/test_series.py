"""The values and steps that are appended to the series of a run."""

from __future__ import annotations

import math
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchbus import session
from torchbus.errors import UsageError

from torchbus_neptune.logger import NeptuneLogger, SeriesAppender, storable


class Run(dict):
    """Stores the appended values."""

    def __missing__(self, path):
        self[path] = values = types.SimpleNamespace(points=[])
        values.append = lambda value, step: values.points.append((step, value))
        return values


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 5),
            st.floats(allow_nan=True, allow_infinity=True, width=32),
        ),
        max_size=60,
    )
)
def test_steps_grow_in_each_series_and_no_finite_value_is_lost(points):
    run, series = Run(), SeriesAppender()
    for path, step, value in points:
        series.append(run, path, value, step)
    for path in "ab":
        theirs = [value for name, _, value in points if name == path]
        steps = [step for step, _ in run[path].points]
        assert [value for _, value in run[path].points] == [
            value for value in theirs if math.isfinite(value)
        ]
        assert series.not_finite[path] == sum(not math.isfinite(value) for value in theirs)
        assert steps == sorted(set(steps))


def test_growing_steps_stay_as_they_are():
    run, series = Run(), SeriesAppender()
    for step in (0, 3, 3, 4):
        series.append(run, "a", 1.0, step)
    assert [step for step, _ in run["a"].points] == [0.0, 3.0, 3.001, 4.0]


def test_settings_as_neptune_stores_them():
    given = {"a": {"b": [1, 2], "c": None, "x/y": True}, "d": 1.5, "": "e"}
    assert storable(given) == {"a": {"b": "[1, 2]", "c": "None", "x_y": True}, "d": 1.5, "_": "e"}


class Client(types.ModuleType):
    """A compatible client."""

    def __init__(self):
        super().__init__("client")
        self.given: list[dict] = []
        self.run = Run()
        self.run.stop = lambda seconds: self.given.append({"stopped": seconds})

    def init_run(self, **options):
        self.given.append(options)
        return self.run


def test_another_client_gets_what_neptune_would():
    client = Client()
    logger = NeptuneLogger(
        client=client, project="team/digits", api_token="hush", tags=("a",), finish_timeout_s=65.0
    )
    with session(logger, strategy=None) as s:
        for step, loss in enumerate((0.5, math.nan, 0.25)):
            s._context.bus.hook.metrics_ready(
                metrics={"loss": loss}, step=step, epoch=0, prog_bar=frozenset()
            )
        s._context.bus.hook.system_metrics(metrics={"gpu_percent": 50.0}, time_s=2.0)
        s._context.bus.hook.hyperparameters(values={"lr": 0.1})
        assert "hush" not in s.explain()
    options, stopped = client.given
    assert options == {
        "project": "team/digits",
        "tags": ["a"],
        "api_token": "hush",
        "monitoring_namespace": "monitoring/rank0",
    }
    assert stopped == {"stopped": 60.0}
    assert (
        client.run["metrics/loss"].points == [(0.0, 0.5), (2.0, 0.25)]
        and client.run["not_finite/metrics/loss"] == 1
    )
    assert client.run["metrics/epoch"].points == [(0.0, 0), (1.0, 0), (2.0, 0)]
    assert client.run["system/rank0/gpu_percent"].points == [(2.0, 50.0)]
    assert client.run["parameters"] == {"lr": 0.1} and client.run["torchbus"]["world_size"] == 1


def test_a_run_of_the_script_is_used_and_left_open():
    client = Client()
    with session(NeptuneLogger(run=client.run), strategy=None) as s:
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 0.5}, step=1, epoch=None, prog_bar=frozenset()
        )
    assert client.given == [] and client.run["metrics/loss"].points == [(1.0, 0.5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"mode": "online"},
            "NeptuneLogger(mode='online') is unknown: use one of async, sync, offline, read-only, debug",
        ),
        ({"api_token": 5}, "NeptuneLogger(api_token=...) is an int: it must be a text"),
        (
            {"client": math},
            "NeptuneLogger(client='math') has no init_run: pass a module such as neptune",
        ),
        ({"tags": "a"}, "tags='a' is a str: it must be a list of texts"),
        ({"offline": True}, "NeptuneLogger has no option 'offline': use mode='offline'"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(UsageError) as error:
        NeptuneLogger(**options)
    assert str(error.value) == words
