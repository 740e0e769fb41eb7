"""What all loggers of the package have in common, without their clients."""

from __future__ import annotations

import pytest
from torchbus import session
from torchbus.errors import UsageError

import torchbus_trackers
from torchbus_log.trackers.values import describe_run
from torchbus_testing.scripts import run_script
from torchbus_trackers import one_run
from torchbus_trackers.one_run import RunOfProject, flat

NAMES = ("aim", "clearml", "comet", "dvclive", "mlflow", "swanlab", "trackio")


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_is_not_installed_is_named_before_anything_starts(name, monkeypatch):
    monkeypatch.setattr(one_run, "find_spec", lambda module: None)
    with pytest.raises(UsageError) as told:
        session(logger=name)
    assert f"logger '{name}' needs the package" in str(told.value)
    assert str(told.value).endswith(f'not installed: pip install "torchbus-trackers[{name}]"')


class Made(RunOfProject):
    """A tracker whose client fails in every call, with the key in the message."""

    name = "made"
    module = "csv"

    def open_run(self, session, config, offline):
        if self._options.get("fails_at_start"):
            raise ConnectionError(f"key {self._options['api_key']} is refused")
        return "run"

    def id_of(self, run):
        return run

    def send_metrics(self, metrics, step, epoch):
        raise ConnectionError(f"no server for {self._options['api_key']}")


KEY = "c0ffee-" * 4


def test_a_client_that_fails_stops_nothing_and_its_key_stays_secret():
    logger = Made(options={"api_key": KEY})
    with pytest.warns(UserWarning, match="calls failed") as heard, session(logger) as s:
        for step in range(3):
            s.log("loss", 0.5, step=step)
        assert logger.run_id == "run" and KEY not in s.explain()
    (told,) = [str(one.message) for one in heard]
    assert "no server for (hidden)" in told and KEY not in told


def test_a_start_that_fails_is_tried_offline_and_told_without_the_key():
    logger = Made(options={"api_key": KEY, "fails_at_start": True})
    with pytest.warns(UserWarning, match="did not start") as heard, session(logger):
        assert logger.run_id == "" and not logger.experiment
    assert [KEY in str(one.message) for one in heard] == [False, False]
    assert "it continues offline: ConnectionError: key (hidden) is refused" in str(heard[0].message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"project": 3}, "project=3 is an int: it must be a text"),
        ({"offline": 1}, "offline=1 is an int: it must be True or False"),
        ({"options": "a"}, "options='a' is a str: it must be a dict"),
    ],
)
def test_options_have_types(options, message):
    with pytest.raises(UsageError, match=message):
        Made(**options)


@pytest.mark.parametrize(
    ("made", "option", "remedy"),
    [
        ("Aim", "run_hash", "resume="),
        ("Comet", "online", "offline="),
        ("DVCLive", "dir", "root="),
        ("MLflow", "experiment_id", "project=, the name of the experiment"),
        ("SwanLab", "config", r"s.log_hyperparams\(...\)"),
    ],
)
def test_what_the_logger_passes_is_refused_among_the_options(made, option, remedy, monkeypatch):
    """The client would raise a TypeError, for an argument that it gets twice."""
    monkeypatch.setattr(one_run, "find_spec", lambda module: module)
    logger = f"{made}Logger"
    message = rf"{logger}\(options={{'{option}': ...}}\): the logger itself .*\. Use {remedy}$"
    with pytest.raises(UsageError, match=message):
        getattr(torchbus_trackers, logger)(options={option: "x"})


def test_nested_settings_have_joined_names():
    assert flat({"a": 1, "b": {"c": {"d": 2}, "e": {}}}) == {"a": 1, "b.c.d": 2, "b.e": {}}


def test_loading_the_loggers_imports_no_client():
    script = "import sys, torchbus_trackers; print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    clients = (
        "aim",
        "clearml",
        "comet_ml",
        "dvclive",
        "mlflow",
        "swanlab",
        "trackio",
        "accelerate",
    )
    assert run_script(script, *clients).ok().stdout == "[]\n"


def test_the_description_of_a_run_has_only_types_that_every_client_can_write():
    """torch's version is a subclass of str, which a writer of YAML rejects."""

    def types(value):
        parts = value.values() if isinstance(value, dict) else value if type(value) is list else ()
        return {type(value)}.union(*map(types, parts))

    with session() as s:
        found = types(describe_run(s._context))
    assert found <= {dict, list, str, int, float, bool, type(None)}
