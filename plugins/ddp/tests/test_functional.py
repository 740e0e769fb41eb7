"""Models that the transforms of torch.func call."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "functional.py"


def test_two_ranks_equal_one_process() -> None:
    found = fork_script(SCRIPT, timeout_s=115).json()
    assert len(found) == 4 and all(difference < 1e-12 for difference in found.values()), found
