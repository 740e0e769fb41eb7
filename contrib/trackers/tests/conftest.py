"""Fixtures that run the logging loop, and return its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.scripts import run_script

LOOP = Path(__file__).parent / "scripts" / "logging_loop.py"
SECRET = "hush-hush"


class Told(dict[str, Any]):
    """The loop's output: "id", "same_random", "explained". ``result`` is its process."""

    def __init__(self, result: Any) -> None:
        line = next(one for one in result.stdout.splitlines() if one.startswith("told "))
        super().__init__(json.loads(line.removeprefix("told ")))
        self.result = result


@pytest.fixture
def values() -> list[tuple[int, float]]:
    """The steps and values of the loop's rank 0."""
    return [(step, 1 / step) for step in range(1, 21)]


@pytest.fixture
def log(tmp_path):
    """Runs the loop with a logger in an empty folder, and returns its output."""

    def run(logger, options=None, ranks=1, fails=False, **env) -> Told:
        words = json.dumps([logger, {"finish_timeout_s": 500, **(options or {})}, ranks, fails])
        home = {"HOME": str(tmp_path), "DO_NOT_TRACK": "1", **env}
        result = run_script(LOOP, words, env=home, cwd=tmp_path, timeout_s=500)
        assert fails or (result.ok() and "ended" in result.stdout)
        told = Told(result)
        assert SECRET not in result.stdout + result.stderr and told["same_random"]
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
        return told

    return run


@pytest.fixture
def read(tmp_path):
    """Runs a script that reads a run with the tracker's client, and returns its JSON."""

    def run(script, *words):
        home = {"HOME": str(tmp_path), "DO_NOT_TRACK": "1"}
        return run_script(script, *words, env=home, cwd=tmp_path, timeout_s=500).json()

    return run
