"""Aim: a local repository, read back by Aim."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("aim") is None, reason="aim is not installed"),
]

READ = (SCRIPTS / "aim_read.py").read_text()


def test_two_ranks_have_one_run_which_goes_on(log, read, values):
    pytest.importorskip("torchbus_ddp")
    first = log("AimLogger", {"project": "digits", "name": "first"}, ranks=2, fails=True)
    (run,) = read(READ)
    assert (run["id"], run["name"], run["project"]) == (first["id"], "first", "digits")
    assert [tuple(pair) for pair in run["metrics"]["rank0"]] == values
    assert "rank1" not in run["metrics"] and run["config"]["failed"] is True
    assert run["media"]["w"] == [3, {"bin_count": 4, "range": [0.0, 99.0]}]
    sizes = {
        name: (one["width"], one["height"])
        for name, (_, one) in run["media"].items()
        if name != "w"
    }
    assert sizes == {"grey": (5, 4), "samples/a b": (5, 4)}
    assert run["hyperparameters"]["net"] == {"width": 64}
    again = log("AimLogger", {"resume": first["id"]})
    (run,) = read(READ)
    assert again["id"] == run["id"] and run["config"]["failed"] is False
