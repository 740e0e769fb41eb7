"""Loops that are alike for long, and then change, give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "changing.py"


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_loops_that_change_after_many_alike_steps_give_what_one_process_gives(ranks):
    result = fork_script(SCRIPT, ranks)
    assert result.ok() and result.stderr == ""
    apart = result.json()
    assert {form: len(loops) for form, loops in apart.items()} == {"steps": 20, "windows": 7}
    for loops in apart.values():
        assert {name: value for name, value in loops.items() if value > 1e-12} == {}
