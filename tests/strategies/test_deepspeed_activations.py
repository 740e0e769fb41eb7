"""``activation_checkpointing=`` under DeepSpeed, whose config has a section of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_activations.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_blocks_compute_again_in_backward():
    """3 steps, 2 blocks: the session finds the model at its first call, so one runs once."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    found = fork_script(SCRIPT, timeout_s=280).json()
    for stage, (apart, forwards) in found.items():
        assert apart < 1e-6 and forwards > 9, (stage, found)
