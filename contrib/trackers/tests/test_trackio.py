"""Trackio: its local database, read back by Trackio."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed"),
]

READ = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
project = sys.argv[1]
print(json.dumps([{
    "name": run,
    "rows": SQLiteStorage.get_logs(project, run),
    "system": SQLiteStorage.get_system_logs(project, run),
    "config": SQLiteStorage.get_run_config(project, run),
} for run in SQLiteStorage.get_runs(project)]))
"""


def test_two_ranks_have_one_run(log, read, values):
    pytest.importorskip("torchbus_ddp")
    first = log("TrackioLogger", {"project": "digits", "name": "first"}, ranks=2)
    (run,) = read(READ, "digits")
    assert run["name"] == first["id"] == "first"
    assert [(row["step"], row["rank0"]) for row in run["rows"] if "rank0" in row] == values
    assert not any("rank1" in row for row in run["rows"])
    assert run["system"][0]["gpu_percent"] == 50.0
    assert run["config"]["hyperparameters"]["net"] == {"width": 64}


@pytest.mark.slow
def test_a_run_goes_on(log, read):
    log("TrackioLogger", {"project": "digits", "name": "first"})
    log("TrackioLogger", {"project": "digits", "resume": "first"})
    (run,) = read(READ, "digits")
    assert len([row for row in run["rows"] if "rank0" in row]) == 40
