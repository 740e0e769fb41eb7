"""Aim: a local repository, read back by Aim."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("aim") is None, reason="aim is not installed"),
]

READ = """
import json
from aim import Repo, Run
from torchbus_trackers.aim import QUIET
print(json.dumps([{
    "id": run.hash, "name": run.name, "project": run.experiment,
    "hyperparameters": run["hyperparameters"], "config": run["torchbus"],
    "metrics": {
        metric.name: [(int(step), value) for step, (value, _, _) in metric.data.items()]
        for metric in run.metrics()
    },
} for run in [Run(one, repo=".", **QUIET) for one in Repo(".").list_all_runs()]]))
"""


def test_two_ranks_have_one_run_which_goes_on(log, read, values):
    pytest.importorskip("torchbus_ddp")
    first = log("AimLogger", {"project": "digits", "name": "first"}, ranks=2, fails=True)
    (run,) = read(READ)
    assert (run["id"], run["name"], run["project"]) == (first["id"], "first", "digits")
    assert [tuple(pair) for pair in run["metrics"]["rank0"]] == values
    assert "rank1" not in run["metrics"] and run["config"]["failed"] is True
    assert run["hyperparameters"]["net"] == {"width": 64}
    again = log("AimLogger", {"resume": first["id"]})
    (run,) = read(READ)
    assert again["id"] == run["id"] and run["config"]["failed"] is False
