"""Loops that compute with divided parameters and gradients by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDING = 1e-12
LOOPS = ("penalty", "in place", "function", "scaled", "scaled by function", "gated", "losses")


@pytest.mark.parametrize(("ranks", "tp"), [(2, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_the_numbers_of_one_process(ranks, tp):
    """Penalties, gradients scaled by hand, moving averages, and what layers hand on, mixed."""
    found = fork_script(SCRIPTS / "loops.py", ranks, tp, timeout_s=240).json()
    assert {name: found[name] for name in LOOPS if found[name] > ROUNDING} == {}
    assert found["warnings"] == [] and found["filters"]


def test_copies_are_whole_and_may_be_divided_in_turn():
    found = fork_script(SCRIPTS / "copies.py", timeout_s=240).json()
    assert found["teacher is whole"] and found["part of the pupil"] == 12
    for name in ("model", "teacher", "pupil"):
        assert found[name] < ROUNDING and found[f"{name} plain"] and found[f"{name} clean"], name
