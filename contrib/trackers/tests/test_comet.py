"""Comet: the archive that comet_ml writes offline."""

from __future__ import annotations

import json
import zipfile
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("comet_ml") is None, reason="comet_ml is not installed"),
]
KEY = "hush-hush-hush-hush"


def messages(archive) -> list[dict]:
    with zipfile.ZipFile(archive) as files, files.open("messages.json") as lines:
        return [json.loads(line) for line in lines]


def metrics(archive, name: str) -> list[tuple[int, float]]:
    every = [one["payload"]["metric"] for one in messages(archive) if one["type"] == "metric_msg"]
    return [(one["step"], one["metricValue"]) for one in every if one["metricName"] == name]


def parameters(archive) -> dict[str, object]:
    every = [one["payload"] for one in messages(archive) if one["type"] == "parameter_msg"]
    found = [one.get("param", one.get("params")) for one in every]
    return {one["paramName"]: one["paramValue"] for one in found}


def test_an_offline_run_is_one_archive_of_rank_0(tmp_path, log, values):
    pytest.importorskip("torchbus_ddp")
    told = log("CometLogger", {"offline": True, "project": "digits"}, ranks=2)
    (archive,) = tmp_path.rglob("*.zip")
    assert told["id"] in archive.name
    assert metrics(archive, "rank0") == values and not metrics(archive, "rank1")
    assert parameters(archive)["lr"] == 0.1
    files = [one["payload"] for one in messages(archive) if one["type"] == "file_upload"]
    names = [one["additional_params"] for one in files]
    assert [one.get("figName") or one["fileName"] for one in names] == ["samples/a b", "grey", "w"]
    assert {one["step"] for one in names} == {3}
    with zipfile.ZipFile(archive) as opened:
        assert opened.read(files[0]["file_path"]).startswith(b"\x89PNG")
        counted = json.loads(opened.read(files[2]["file_path"]))
    assert [count for _, count in counted["index_values"]] == [25] * 4
    told_of_script = [one for one in messages(archive) if "logging_loop.py" in json.dumps(one)]
    assert [one["payload"]["params"]["paramName"] for one in told_of_script] == ["torchbus_command"]


@pytest.mark.slow
def test_without_a_server_the_run_is_an_archive(tmp_path, log, values):
    told = log(
        "CometLogger",
        {"options": {"api_key": KEY}, "start_timeout_s": 5},
        COMET_URL_OVERRIDE="http://127.0.0.1:9/clientlib/",
    )
    assert "comet did not start, it continues offline" in told.result.stderr
    (archive,) = tmp_path.rglob("*.zip")
    assert metrics(archive, "rank0") == values
