"""MLflow: a real server with SQLite, a local store, and no server."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
import urllib.request
from importlib.util import find_spec

import pytest
from torchbus import session
from torchbus.errors import PluginError, UsageError

from torchbus_testing.scripts import start
from torchbus_trackers import MLflowLogger

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed"),
]
STORE = "sqlite:///store.db"

READ = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
found = client.search_runs([one.experiment_id for one in client.search_experiments()])
def history(run, name):
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
print(json.dumps([{
    "id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
    "project": client.get_experiment(run.info.experiment_id).name,
    "params": run.data.params, "tags": run.data.tags,
    "metrics": {name: history(run, name) for name in run.data.metrics},
} for run in found]))
"""


@pytest.fixture
def server(tmp_path):
    """The address of a real MLflow server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", STORE]
    with start([*command, "--port", str(port), "--workers", "1"], cwd=tmp_path):
        for _ in range(3000):  # on a busy machine, the server's imports take minutes
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
            except OSError:
                time.sleep(0.1)
            else:
                break
        yield address


def series(run, name):
    return [tuple(pair) for pair in run["metrics"][name]]


@pytest.mark.slow
def test_two_ranks_have_one_run_on_a_server(log, read, server, values):
    pytest.importorskip("torchbus_ddp")
    options = {"tracking_uri": server, "project": "digits", "name": "first", "start_timeout_s": 200}
    told = log("MLflowLogger", options, ranks=2)
    (run,) = read(READ, server)
    assert (run["id"], run["name"], run["project"]) == (told["id"], "first", "digits")
    assert run["status"] == "FINISHED" and series(run, "rank0") == values
    assert "rank1" not in run["metrics"] and "bad" in run["metrics"]
    assert run["params"] == {"lr": "0.1", "net.width": "64", "api_key": "(hidden)"}
    assert run["tags"]["torchbus.world_size"] == "2"


@pytest.mark.slow
def test_a_store_in_a_file_has_all_steps_and_goes_on(log, read, values):
    first = log("MLflowLogger", {"tracking_uri": STORE}, fails=True)
    (run,) = read(READ, STORE)
    assert run["status"] == "FAILED" and series(run, "rank0") == values
    assert series(run, "train/acc_1")[-1] == (20, 20.0)
    assert series(run, "system/gpu_percent") == [(2, 50.0)]
    log("MLflowLogger", {"tracking_uri": STORE, "resume": first["id"]})
    (run,) = read(READ, STORE)
    assert run["status"] == "FINISHED" and sorted(series(run, "rank0")) == sorted(values * 2)


CHANGE = """
import sys
from torchbus import session
from torchbus_trackers.mlflow import MLflowLogger

logger = MLflowLogger(tracking_uri=sys.argv[1], project="digits", finish_timeout_s=500)
with session(logger=logger) as s:
    for step in range(50):
        s.log_dict({f"layer{layer}": step + layer / 7 for layer in range(3)}, step=step)
    s.log_hyperparams({"lr": 0.1})
    s.log_hyperparams({"lr": 0.1, "width": 3})
    s.log_hyperparams({"lr": 0.2})
"""


def test_values_and_parameters_of_a_session_are_in_the_store(read):
    """A parameter that changes is a tag."""
    (run,) = read(CHANGE + READ, STORE)
    assert (run["project"], run["status"]) == ("digits", "FINISHED")
    assert series(run, "layer2") == [(step, step + 2 / 7) for step in range(50)]
    assert run["params"] == {"lr": "0.1", "width": "3"} and run["tags"]["later.lr"] == "0.2"


@pytest.mark.slow
def test_without_a_server_the_run_is_in_a_local_store(log, read, values):
    told = log("MLflowLogger", {"tracking_uri": "http://me:hush-hush@127.0.0.1:9/"})
    said = "mlflow did not start, it continues offline: ConnectionError: the server at"
    assert f"{said} http://127.0.0.1:9/ does not answer: [Errno 111]" in told.result.stderr
    (run,) = read(READ, "sqlite:///mlflow-offline.db")
    assert series(run, "rank0") == values and told["id"] == run["id"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("listens", [True, False])
def test_a_server_that_does_not_answer_is_named(tmp_path, monkeypatch, listens):
    """At once if nothing listens there, and otherwise after ``start_timeout_s``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        if listens:
            mute.listen()
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        seconds = 1 if listens else 500
        logger = MLflowLogger(tracking_uri=address, start_timeout_s=seconds, on_error="raise")
        heard = f"no answer from {address} within 1 s" if listens else f"{address} does not answer"
        with pytest.raises(PluginError, match=f"mlflow did not start: .*{heard}"):
            session(logger=logger).__enter__()
    for thread in threading.enumerate():  # its client would draw random numbers during later tests
        if thread.name == "torchbus-mlflow":
            thread.join(60)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "uri",
    [
        "nonsense://host",
        "localhost:5000",
        "sqlite://store.db",
        "http:/host:5000",
        "postgresql+no://h",
    ],
)
def test_a_rejected_uri_stops_before_training(uri):
    logger = MLflowLogger(tracking_uri=uri)
    with (
        pytest.raises(UsageError, match=re.escape(f"tracking_uri={uri!r} is rejected")),
        session(logger=logger),
    ):
        raise AssertionError("it trains")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_of_one_seed_have_separate_names(tmp_path):
    names = []
    for _ in range(2):
        logger = MLflowLogger(tracking_uri=f"sqlite:///{tmp_path}/store.db")
        with session(logger=logger, seed=0):
            names.append(logger.experiment.info.run_name)
    assert len({*names}) == 2 and all(re.match(r"\d{8}-\d{6}-", name) for name in names)
