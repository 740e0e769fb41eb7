"""A secret is in no file that a run leaves, and in nothing that it says: with every logger, a checkpoint, and a rank that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchbus import hookimpl, session

SCRIPT = """
    import argparse, dataclasses, os, sys, types, torch
    from torch.utils.data import DataLoader
    from torchbus import session

    @dataclasses.dataclass
    class Settings:
        password: str = "plant-dataclass-77"
        lr: float = 0.1

    class Client:
        def __init__(self):
            self.api_key = "plant-repr-77"
        def __repr__(self):
            return f"Client(api_key={self.api_key!r})"

    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    parser.add_argument("--hub-token")
    parser.add_argument("--loggers")
    parser.add_argument("--fail", type=int, default=0)
    given = parser.parse_args()
    env = os.environ["SOME_API_TOKEN"]
    data = torch.randn(16, 2)
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork", logger=given.loggers.split(","), log_every_n_steps=1,
                 checkpoint="ck", every_n_steps=2) as s:
        s.log_hyperparams(given)
        s.log_hyperparams({
            "wandb-key": "plant-name-77", "nested": [{"pwd": "plant-nested-77"}], "client": Client(), "settings": Settings(),
            "bearer": "plant-bearer-77", "copy": f"it is {env} and plant-name-77", "argv": sys.argv, "env": dict(os.environ),
            "url": "https://me:plant-url-77@host/x", "sn": types.SimpleNamespace(token="plant-namespace-77"), "kept": "shown-77",
            "header": {"Authorization": "Bearer plant-header-77"}, env: 1,
        })
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, x in enumerate(DataLoader(data, batch_size=2)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            s.log("acc", step)
            if given.fail and step == 2 and s.rank == 1:
                raise ValueError(f"refused {env} for {given.api_key} at https://me:plant-url-77@host")
        text = s.explain()
        if s.is_main:
            print(text)
"""
PLANTED = b"plant-"


def run_planted(folder: Path, loggers: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    environment = os.environ | {
        "SOME_API_TOKEN": "plant-environment-77", "DATABASE_URL": "postgres://u:plant-dsn-77@h/db", "WANDB_MODE": "offline",
        "NEPTUNE_MODE": "offline", "NEPTUNE_PROJECT": "a/b", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "train.py", "--api-key=plant-flag-77", "--hub-token", "plant-word-77", "--loggers", loggers, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=280)


def left_in(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "train.py"]
    assert files
    return [str(path.relative_to(folder)) for path in files if PLANTED in path.read_bytes()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("loggers", ["local", pytest.param("tensorboard,local,wandb,neptune", marks=pytest.mark.slow)])
def test_no_file_that_a_run_leaves_has_a_secret(tmp_path: Path, loggers: str) -> None:
    done = run_planted(tmp_path, loggers)
    assert done.returncode == 0, done.stderr.decode()
    assert left_in(tmp_path) == [] and PLANTED not in done.stdout + done.stderr
    (config,) = tmp_path.glob("torchbus-logs/*/config.json")
    told = json.loads(config.read_text())
    assert told["hyperparams"]["kept"] == "shown-77" and told["command"][1:3] == ["train.py", "--api-key=(hidden)"]


@pytest.mark.timeout(300)
def test_the_error_of_another_rank_is_shown_without_secrets(tmp_path: Path) -> None:
    done = run_planted(tmp_path, "local", "--fail", "1")
    assert done.returncode != 0 and PLANTED not in done.stdout + done.stderr and b"(hidden)" in done.stderr


class Talks:
    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"notes": [f"{'a long line, ' * 6} refused plant-long-hyphened-value-77 at https://me:plant-url-77@host/ with key='plant-key-77'"]}


def test_what_plugins_explain_is_hidden_before_it_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "plant-long-hyphened-value-77")
    with session(Talks(), strategy=None) as s:
        said = s.explain()
    assert "plant-" not in said and said.count("(hidden)") == 3 and "hyphened" not in said


names = st.sampled_from(["key", "access_key", "db_pwd", "GH_PAT", "wandb-key", "bearer", "client_secret", "authToken"])
letters = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"])
secrets = st.text(letters, min_size=6, max_size=20).map(lambda text: f"q8{text}Z")


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(names, secrets, st.sampled_from(["environment", "hyperparameter", "nested", "address"]))
def test_wherever_it_stands(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, name: str, secret: str, place: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    with monkeypatch.context() as patch:
        if place == "environment":
            patch.setenv(name, secret)
        with session(strategy=None, logger="local", log_dir=folder) as s:
            planted = {"hyperparameter": {name: secret}, "nested": {"a": [({name: secret},)]}, "address": {"u": f"http://u:{secret}@h/x"}}
            s.log_hyperparams({**planted.get(place, {}), "copy": secret, "text": f"<{secret}>", "list": [secret]})
            said = s.explain()
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    assert text and all(spelled not in text + said for spelled in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]))
