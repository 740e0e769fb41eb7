"""Loops that are alike for long, and then change, give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchbus_simulator
from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "changing.py"
SLOW = pytest.mark.slow
ON_SIM = pytest.mark.skipif(torchbus_simulator.missing() is not None, reason="needs a compiler")


@pytest.mark.parametrize(
    ("ranks", "accelerator", "window", "loops"),
    [
        (2, "cpu", 1, 20),
        (2, "cpu", 2, 7),
        pytest.param(3, "cpu", 1, 20, marks=SLOW),
        pytest.param(3, "cpu", 2, 7, marks=SLOW),
        pytest.param(2, "sim", 1, 4, marks=[SLOW, ON_SIM, pytest.mark.timeout(400)]),
    ],
)
def test_loops_that_change_after_many_alike_steps(ranks, accelerator, window, loops):
    result = fork_script(SCRIPT, ranks, accelerator, window, timeout_s=380)
    assert result.ok() and (window > 1 or result.stderr == "")
    assert result.stderr.count("Warning:") == result.stderr.count("computes 'loss'")
    apart = result.json()
    assert len(apart) == loops
    assert {name: value for name, value in apart.items() if value > 1e-12} == {}
