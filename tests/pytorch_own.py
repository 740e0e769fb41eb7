"""A pytest plugin: every test runs inside a session of one rank.

``run_pytorch_tests.py`` loads it for PyTorch's own tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchbus import session

MODES = ("plain", "session", "uncaptured")
PLUGINS = {
    "strategy": "ddp",
    "devices": 0,
    "gradient_clip_val": 1e30,
    "accumulate_grad_batches": 1,
    "logger": "local",
    "autolog": True,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torchbus", choices=MODES, default="session", help="the session that each test runs in"
    )
    parser.addoption(
        "--outcomes",
        type=Path,
        required=True,
        help="a file for a line of JSON per test: its name and what became of it",
    )


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    mode = request.config.getoption("--torchbus")
    if mode == "plain":
        yield
        return
    with session("sampler", **PLUGINS, log_dir=str(tmp_path), capture=mode == "session"):
        yield


class Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with self._path.open("a") as file:
            file.write(
                json.dumps([report.nodeid, report.outcome, report.longreprtext.splitlines()[-1:]])
                + "\n"
            )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(config.getoption("--outcomes")))
