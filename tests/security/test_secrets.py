"""A secret is in no file that a run leaves, and in nothing that it says: with every logger, a
checkpoint, and a rank that fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchbus import session
from torchbus.bus.base import hookimpl

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = (SCRIPTS / "planted_secrets.py").read_text()
PLANTED = b"plant-"


def run_planted(folder: Path, loggers: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    (folder / "train.py").write_text(SCRIPT)
    environment = os.environ | {
        "SOME_API_TOKEN": "plant-environment-77",
        "DATABASE_URL": "postgres://u:plant-dsn-77@h/db",
        "WANDB_MODE": "offline",
        "NEPTUNE_MODE": "offline",
        "NEPTUNE_PROJECT": "a/b",
        "TRACKIO_DIR": str(folder / "trackio"),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "train.py",
        "--api-key=plant-flag-77",
        "--hub-token",
        "plant-word-77",
        "--loggers",
        loggers,
        *words,
    ]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=280)


def left_in(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "train.py"]
    assert files
    return [str(path.relative_to(folder)) for path in files if PLANTED in path.read_bytes()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "loggers",
    [
        "local",
        pytest.param("tensorboard,local,wandb,neptune,csv,mlflow,trackio", marks=pytest.mark.slow),
    ],
)
def test_no_file_that_a_run_leaves_has_a_secret(tmp_path: Path, loggers: str) -> None:
    done = run_planted(tmp_path, loggers)
    assert done.returncode == 0, done.stderr.decode()
    assert left_in(tmp_path) == [] and PLANTED not in done.stdout + done.stderr
    (config,) = tmp_path.glob("torchbus-logs/*/config.json")
    told = json.loads(config.read_text())
    assert told["hyperparams"]["kept"] == "shown-77" and told["command"][1:3] == [
        "train.py",
        "--api-key=(hidden)",
    ]


@pytest.mark.timeout(300)
def test_the_error_of_another_rank_is_shown_without_secrets(tmp_path: Path) -> None:
    done = run_planted(tmp_path, "local", "--fail", "1")
    assert (
        done.returncode != 0
        and PLANTED not in done.stdout + done.stderr
        and b"(hidden)" in done.stderr
    )


class Talks:
    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {
            "notes": [
                f"{'a long line, ' * 6} refused plant-long-hyphened-value-77 at https://me:plant-url-77@host/ with key='plant-key-77'"
            ]
        }


def test_what_plugins_explain_is_hidden_before_it_is_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "plant-long-hyphened-value-77")
    with session(Talks(), strategy=None) as s:
        said = s.explain()
    assert "plant-" not in said and said.count("(hidden)") == 3 and "hyphened" not in said


names = st.sampled_from(
    ["key", "access_key", "db_pwd", "GH_PAT", "wandb-key", "bearer", "client_secret", "authToken"]
)
letters = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"])
secrets = st.text(letters, min_size=6, max_size=20).map(lambda text: f"q8{text}Z")


@settings(
    deadline=None,
    max_examples=6,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(names, secrets, st.sampled_from(["environment", "hyperparameter", "nested", "address"]))
def test_wherever_it_stands(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    secret: str,
    place: str,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with monkeypatch.context() as patch:
        if place == "environment":
            patch.setenv(name, secret)
        with session(strategy=None, logger="local", log_dir=folder) as s:
            planted = {
                "hyperparameter": {name: secret},
                "nested": {"a": [({name: secret},)]},
                "address": {"u": f"http://u:{secret}@h/x"},
            }
            s.log_hyperparams(
                {**planted.get(place, {}), "copy": secret, "text": f"<{secret}>", "list": [secret]}
            )
            said = s.explain()
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    assert text and all(
        spelled not in text + said
        for spelled in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
    )
