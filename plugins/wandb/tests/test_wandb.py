"""The real wandb, offline, read back with wandb's tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.scripts import run as run_command
from torchbus_testing.scripts import run_script
from torchbus_wandb.logger import WandbLogger, physical_gpu

SCRIPTS = Path(__file__).parent / "scripts"

PATIENCE_S = 600.0


def records(folder, kind: str) -> list[dict]:
    """Records of one kind in the log of the only run."""
    (run,) = (folder / "wandb").glob("offline-run-*")
    result = run_command(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)], timeout_s=PATIENCE_S
    )
    assert result.ok()
    told = [json.loads(line) for line in result.stdout.splitlines()]
    return [record[kind] for record in told if record["type"] == kind]


LOGGER = SCRIPTS / "offline_logger.py"


@pytest.mark.timeout(900)
def test_a_run_offline(tmp_path):
    """No value is dropped for its step, checkpoints have one version, and the script's calls go to
    the same run.
    """
    assert run_script(LOGGER, cwd=tmp_path, timeout_s=PATIENCE_S).ok()
    history = [record["item"] for record in records(tmp_path, "history")]
    assert [
        (item["step"], item["loss"], item["nan"], item["epoch"])
        for item in history
        if "loss" in item
    ] == [(step, pytest.approx(1 / step), "NaN", 0) for step in (3, 2, 5)]
    assert [item["own"] for item in history if "own" in item] == [1.0]
    accuracies = [(item["step"], item["accuracy"]) for item in history if "accuracy" in item]
    assert accuracies == [(1, 0.5), (2, 0.75)]
    assert [
        (item["system/gpu_percent"], item["system/time_s"])
        for item in history
        if "system/time_s" in item
    ] == [(50.0, 2.5)]
    metrics = records(tmp_path, "metric")
    assert {"name": "step", "options": {"defined": True}} in metrics
    assert any(
        metric.get("glob_name") == "*" and metric["step_metric"] == "step" for metric in metrics
    )
    run = records(tmp_path, "run")[0]
    assert (run["project"], run["tags"]) == ("digits", ["a"]) and run["config"]["update"][
        "torchbus"
    ]["world_size"] == 1
    assert any(
        record.get("update", {}).get("odd") == "<class 'object'>"
        for record in records(tmp_path, "config")
    )
    (run_file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert run_file.read_bytes().count(b"last.pt") >= 1


OWN_CALLS = (SCRIPTS / "wandb_own_calls.py").read_text()


@pytest.mark.timeout(900)
def test_a_script_that_calls_wandb_itself_has_one_run(tmp_path):
    """Without a logger: the plugin is active because the script has imported wandb."""
    pytest.importorskip("torchbus_ddp")
    assert run_script(OWN_CALLS, cwd=tmp_path, timeout_s=PATIENCE_S).ok()
    assert [item["item"]["rank"] for item in records(tmp_path, "history")] == [0, 0, 0]
    assert len(list((tmp_path / "wandb").glob("offline-run-*/files/model.pt"))) == 1


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, "cuda:1", 1),
        ("3,5", "cuda:1", 5),
        ("GPU-8f", "cuda:0", None),
        ("3", "cuda:1", None),
        (None, "cpu", None),
        (" 2 ", "cuda:0", 2),
    ],
)
def test_a_rank_samples_its_own_gpu(monkeypatch, visible, device, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert physical_gpu(torch.device(device)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"mode": "sometimes"},
            "WandbLogger(mode='sometimes') is unknown: use one of online, offline, disabled, shared",
        ),
        ({"project": 5}, "project=5 is an int: it must be a text"),
        ({"log_checkpoints": "all"}, "log_checkpoints='all' is a str: it must be True or False"),
        ({"ranks": "some"}, "ranks='some' is unknown: use 'main' or 'all'"),
        ({"resume": 3}, "resume=3 is an int: it must be 'allow', 'must', 'never' or 'auto'"),
        ({"log_model": True}, "WandbLogger has no option 'log_model': use log_checkpoints=True"),
        ({"save_dir": "x"}, "WandbLogger has no option 'save_dir': use options={'dir': ...}"),
        ({"dir": "x"}, "WandbLogger has no option 'dir': use options={'dir': ...}"),
        (
            {"colour": 1},
            "WandbLogger has no option 'colour': use project, entity, name, id, group, mode, tags,"
            " resume, settings, options, log_checkpoints, ranks, on_error, start_timeout_s,"
            " finish_timeout_s",
        ),
        (
            {"options": {"settings": {}}},
            "WandbLogger(options={'settings': ...}): the logger itself gives 'settings' to the"
            " client. Use settings=",
        ),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(UsageError) as error:
        WandbLogger(**options)
    assert str(error.value) == words


def test_one_rank_needs_no_guard(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with session("wandb_one_run", strategy=None) as s:
        assert "wandb" not in s.explain().split("plugins")[0]
