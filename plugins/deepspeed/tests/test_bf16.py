"""``config={"bf16": {"enabled": True}}``, against one process in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus.testing import fork_script

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_bf16.py"
ROUNDING = 2**-8  # of one number in bf16, relative


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("deepspeed_stage_1", marks=pytest.mark.slow),
        "deepspeed_stage_2",
        pytest.param("deepspeed_stage_3", marks=pytest.mark.slow),
    ],
)
def test_parameters_are_those_of_float32_but_for_rounding(strategy):
    """Ten steps that were taken in bf16 itself are 0.0106 apart."""
    found = fork_script(SCRIPT, strategy, timeout_s=115).json()
    assert found["dtypes"] == ["torch.bfloat16"]
    assert found["apart"] < 2 * ROUNDING, found
