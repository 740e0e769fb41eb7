"""DVCLive: the files that it writes."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("dvclive") is None, reason="dvclive is not installed"),
]
OPTIONS = {"options": {"save_dvc_exp": False}}


def series(folder, name: str) -> list[tuple[int, float]]:
    with open(folder / "plots" / "metrics" / f"{name}.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [(int(row["step"]), float(row[name.split("/")[-1]])) for row in rows]


def test_two_ranks_have_one_folder_which_goes_on(tmp_path, log, values):
    pytest.importorskip("torchbus_ddp")
    told = log("DVCLiveLogger", OPTIONS, ranks=2)
    folder = tmp_path / "dvclive"
    assert told["id"] == "dvclive" and series(folder, "rank0") == values
    assert not (folder / "plots" / "metrics" / "rank1.tsv").exists()
    summary = json.loads((folder / "metrics.json").read_text())
    assert summary["rank0"] == 1 / 20 and summary["system"] == {"gpu_percent": 50.0}
    assert "width: 64" in (folder / "params.yaml").read_text()
    pictures = folder / "plots" / "images"
    assert (pictures / "grey" / "3.png").exists() and (pictures / "samples/a b/3.png").exists()
    log("DVCLiveLogger", {"resume": "dvclive", **OPTIONS})
    assert len(series(folder, "rank0")) == 40
