"""Ray Train around a plain loop: the train function with the one line inside, on two CPU workers.

``pip install -r requirements/launchers.txt``, then ``pytest -m slow tests/launch/test_ray.py``. Ray
gives its own processes 30 s to start; if the host is too busy for that, it is tried again. The other
times after which it takes a busy process for a dead one are options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launched_by import SCRIPT, check, checkpoints, our_own

from torchbus_testing.scripts import Result, run

LOOP = SCRIPT.with_name("ray_train.py")
BUSY = "The current node timed out during startup"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills a worker for the memory of other programs
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    pytest.importorskip("ray.train", reason="pip install -r requirements/launchers.txt")
    return our_own(tmp_path_factory.mktemp("own"))


def train(
    folder: Path, options: dict[str, Any], trouble: str = "", max_failures: int = 0
) -> Result:
    command = [sys.executable, str(LOOP), str(folder), json.dumps(options), trouble]
    for _ in range(3):
        result = run([*command, str(max_failures)], env=ENVIRONMENT, timeout_s=900)
        if BUSY not in result.stderr:
            return result
    return result


def test_the_loop_as_it_is(tmp_path, expected):
    train(tmp_path, {}).ok()
    check(tmp_path, expected, "environment")


def test_a_killed_worker(tmp_path, expected):
    train(tmp_path, checkpoints(tmp_path), "kill", max_failures=1).ok()
    check(tmp_path, expected, "environment")
    explained = (tmp_path / "explained").read_text()
    assert "resumed from" in explained and "SIGTERM and SIGUSR1 are not handled" in explained


def test_a_worker_that_asks_to_save_and_leave(tmp_path, expected):
    options = checkpoints(tmp_path, every_n_steps=1000)
    result = train(tmp_path, options, "ask", max_failures=1).ok()
    check(tmp_path, expected, "environment")
    assert "as asked, and leaving with exit status 138" in result.stdout + result.stderr
    assert "resumed from" in (tmp_path / "explained").read_text()
