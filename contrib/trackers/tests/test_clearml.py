"""ClearML: the folder of a task that is offline."""

from __future__ import annotations

import json
import zipfile
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("clearml") is None, reason="clearml is not installed"),
]


def lines(archive, name: str) -> list[dict]:
    with zipfile.ZipFile(archive) as files:
        return [one for line in files.read(name).decode().splitlines() for one in json.loads(line)]


def scalars(archive, name: str) -> list[tuple[int, float]]:
    every = [one for one in lines(archive, "metrics.jsonl") if one.get("variant") == name]
    return sorted((one["iter"], one["value"]) for one in every)


def test_two_ranks_have_one_task(tmp_path, log, values):
    pytest.importorskip("torchbus_ddp")
    told = log("ClearMLLogger", {"offline": True, "project": "digits"}, ranks=2)
    (archive,) = tmp_path.rglob("*.zip")
    assert told["id"] in archive.name
    assert scalars(archive, "rank0") == values and scalars(archive, "rank1") == []
    shown = lines(archive, "metrics.jsonl")
    pictures = [one for one in shown if one["type"] == "training_debug_image"]
    assert [(one["metric"], one["iter"]) for one in pictures] == [("samples/a b", 3), ("grey", 3)]
    (plot,) = [json.loads(one["plot_str"])["data"] for one in shown if one["type"] == "plot"]
    assert plot[0]["y"] == [25.0] * 4 and plot[0]["x"] == ["0", "24.75", "49.5", "74.25"]
    with zipfile.ZipFile(archive) as files:
        task = json.loads(files.read("task.json"))
    assert task["name"] == "run" and "hyperparameters" in task["hyperparams"]
    assert task["hyperparams"]["hyperparameters"]["net/width"]["value"] == "64"
