"""Steps of ddp_sharded that raise, in a loop that catches the error."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "failing_steps.py"


def test_a_step_that_raises_before_it_changes_anything_is_left_out() -> None:
    assert fork_script(SCRIPT, "before", timeout_s=115).json() < 1e-12


def test_one_that_has_changed_something_is_refused() -> None:
    result = fork_script(SCRIPT, "after", timeout_s=115).ok(1)
    assert "Halting.step() has raised after it had changed parameters" in result.stderr


def test_one_that_raises_on_one_rank_only_ends_the_job() -> None:
    result = fork_script(SCRIPT, "one", timeout_s=115).ok(1)
    assert "RanksDiverged" in result.stderr and "Halting.step" in result.stderr, result.stderr
