"""Several models and optimizers under DeepSpeed, which users of other tools have long asked for.

Accelerate's issues 253 ("Passing multiple models with DeepSpeed will fail"), 1310 (the models and
optimizers of PPO) and 2496 (its plan to support them) are about this.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_several.py"


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        pytest.param("deepspeed_stage_2", 2, marks=pytest.mark.slow),
        ("deepspeed_stage_3", 2),
        pytest.param("deepspeed_stage_1", 3, marks=pytest.mark.slow),
        pytest.param("deepspeed_stage_3", 3, marks=pytest.mark.slow),
    ],
)
def test_one_loss_trains_two_models_and_reads_a_frozen_one(strategy, ranks):
    found = fork_script(SCRIPT, strategy, ranks, timeout_s=115).json()
    assert found["trained"] < 1e-6 and found["reference"] == 0.0, found
    assert found["moved"] > 0.1
