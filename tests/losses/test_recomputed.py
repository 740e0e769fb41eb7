"""Reading a loss's graph computes nothing of the model again."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "recomputed.py"


def test_a_block_under_activation_checkpointing_is_computed_twice_a_step() -> None:
    assert fork_script(SCRIPT).ok().stdout == "[2, 2, 2]\n" * 2
