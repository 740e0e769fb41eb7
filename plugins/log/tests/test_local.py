"""The logger "local": what is in a run's folder."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest
import torch
from torchbus import session

from torchbus_testing.scripts import run_script


def run_folder(root):
    (folder,) = root.iterdir()
    return folder


def lines(folder, name="metrics-rank0.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_folder_for_each_run(tmp_path):
    for _ in range(2):
        with session(strategy=None, logger="local", log_dir=tmp_path / "new" / "runs") as s:
            s.log_dict({"loss": torch.tensor([2.5]), "nan": torch.tensor(float("nan"))})
            s.log("c", 1, step=7)
            s._context.bus.hook.system_metrics(metrics={"cpu_percent": 50.0}, time_s=1.5)
    folders = sorted((tmp_path / "new" / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", folder.name)
        first, second = lines(folder)
        assert first.pop("time_s") >= 0 and second.pop("time_s") >= 0
        assert first == {"step": 0, "loss": 2.5, "nan": "nan"} and second == {"step": 7, "c": 1.0}
        assert lines(folder, "system-rank0.jsonl") == [
            {"step": 0, "time_s": 1.5, "cpu_percent": 50.0}
        ]


class Confusion:
    def update(self) -> None: ...

    def compute(self) -> torch.Tensor:
        return torch.ones(2, 2)

    def reset(self) -> None: ...


def test_names_have_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "hush-hush-1")
    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        s.log("loss/hush-hush-1", 1.0, on_step=True, on_epoch=True)
        s.log_image("x hush-hush-1", torch.zeros(2, 2))
        s.log_histogram("w hush-hush-1", torch.ones(3))
        s.log("confusion hush-hush-1", Confusion())
    folder = run_folder(tmp_path)
    assert not any(b"hush" in one.read_bytes() for one in folder.iterdir() if one.is_file())
    names = {name for line in lines(folder) for name in line}
    assert {"loss/(hidden)_step", "loss/(hidden)_epoch"} <= names
    image, histogram, table = lines(folder, "media.jsonl")
    assert (image["image"], histogram["histogram"]) == ("x (hidden)", "w (hidden)")
    assert table["table"] == "confusion (hidden)"


def test_the_configuration_is_plain_json_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys,
        "orig_argv",
        [
            "python",
            "train.py",
            "--api-key",
            "hush-1",
            "--wandb_token=hush-2",
            "--lr",
            "0.1",
            "hush-3",
        ],
    )
    monkeypatch.setenv("SOME_API_TOKEN", "hush-3")
    values = {
        "lr": 0.1,
        "password": "hush-4",
        "layers": (1, 2),
        "odd": object,
        "bad": float("inf"),
        3: {"Api_Key": "hush-5", "seed": 1},
    }
    with session(strategy=None, logger=True, log_dir=tmp_path) as s:
        s.log_hyperparams(values)
        s.log_hyperparams(extra=True)
        folder = run_folder(tmp_path)
        config = json.loads((folder / "config.json").read_text())
    assert "hush" not in (folder / "config.json").read_text()
    assert config["command"] == [
        "python",
        "train.py",
        "--api-key",
        "(hidden)",
        "--wandb_token=(hidden)",
        "--lr",
        "0.1",
        "(hidden)",
    ]
    assert config["hyperparams"] == {
        "lr": 0.1,
        "password": "(hidden)",
        "layers": [1, 2],
        "odd": "<class 'object'>",
        "bad": "inf",
        "3": {"Api_Key": "(hidden)", "seed": 1},
        "extra": True,
    }
    told = {name: config[name] for name in ("name", "strategy", "world_size", "device", "torch")}
    assert told == {
        "name": folder.name,
        "strategy": None,
        "world_size": 1,
        "device": "cpu",
        "torch": torch.__version__,
    }
    assert config["options"]["logger"] is True and config["options"]["log_dir"] == str(tmp_path)
    assert set(config) >= {"started", "torchbus", "python", "hostname"}


KILLED = """
    import os, signal, torch
    from torchbus import session

    with session(strategy=None, logger="local") as s:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        for step in range(1, 101):
            {before}
            optimizer.step()
            {after}
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(600)
def test_a_hundred_logged_steps_survive_sigkill(tmp_path):
    """Wherever in the step the loop logs."""
    log = 's.log("loss", torch.tensor(float(step)))'
    for name, words in {
        "before": {"before": log, "after": ""},
        "after": {"before": "", "after": log},
    }.items():
        work = tmp_path / name
        work.mkdir()
        assert run_script(KILLED.format(**words), cwd=work, timeout_s=280).ok(-signal.SIGKILL)
        assert [line["loss"] for line in lines(run_folder(work / "torchbus-logs"))] == [
            float(step) for step in range(1, 101)
        ]


def test_a_forked_child_writes_nothing(tmp_path):
    with session(
        strategy=None, logger="local", log_dir=tmp_path, log_every_n_steps=1, autolog=False
    ) as s:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        optimizer.step()
        pid = os.fork()
        if pid == 0:
            s.log("x", 1.0)
            s.log_hyperparams(child=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        s.log("x", 2.0)
    assert [line["x"] for line in lines(run_folder(tmp_path))] == [2.0]
    assert json.loads((run_folder(tmp_path) / "config.json").read_text())["hyperparams"] == {}
