"""Reading a loss's graph computes nothing of the model again, and reads losses that are."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "recomputed.py"


def test_blocks_and_losses_under_activation_checkpointing() -> None:
    assert fork_script(SCRIPT).ok().stdout == "[2, 2, 2]\n" * 2 + "True\n" * 2
