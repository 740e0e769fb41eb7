"""On a busy machine everything takes long, and that is no sign of anything: neither of ranks that
diverge nor of one that is stuck.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchbus_testing.scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"

SESSIONS = SCRIPTS / "busy_sessions.py"


@contextlib.contextmanager
def hogs(number: int) -> Iterator[None]:
    """Processes that never rest."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def check(sessions: int, busy: int, timeout_s: float) -> None:
    with hogs(busy):
        result = run_script(SESSIONS, sessions, timeout_s=timeout_s).ok()
    assert result.stdout.splitlines() == [
        "RankFailed True" if number % 4 == 3 else "end" for number in range(sessions)
    ]
    assert "does not leave native code" not in result.stderr and "did not exit" not in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_a_few_sessions():
    check(4, os.cpu_count() or 1, 300.0)  # each way once


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_sessions():
    check(200, 4 * (os.cpu_count() or 1), 2900.0)
