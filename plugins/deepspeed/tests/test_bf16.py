"""``config={"bf16": {"enabled": True}}``, fp16 and a float64 model, against one process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_bf16.py"
ROUNDING = {"bf16": 2**-8, "fp16": 2**-11, "float64": 2**-22}  # relative; stage 3 steps in float32
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "float64": "torch.float64"}


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        pytest.param("deepspeed_stage_1", "bf16", marks=pytest.mark.slow),
        ("deepspeed_stage_2", "bf16"),
        pytest.param("deepspeed_stage_3", "bf16", marks=pytest.mark.slow),
        ("deepspeed_stage_2", "fp16"),
        pytest.param("deepspeed_stage_3", "fp16", marks=pytest.mark.slow),
        ("deepspeed_stage_3", "float64"),
    ],
)
def test_parameters_are_those_of_one_process_but_for_rounding(strategy, precision):
    """Ten steps that were taken in bf16 itself are 0.0106 apart."""
    found = fork_script(SCRIPT, strategy, precision, timeout_s=115).json()
    assert found["dtypes"] == [DTYPES[precision]]
    assert found["apart"] < 2 * ROUNDING[precision], found
