"""Trackio: its local database, read back by Trackio."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed"),
]

READ = (SCRIPTS / "trackio_read.py").read_text()


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
