"""What one stage has saved, another one loads, on any number of ranks.

DeepSpeed's own checkpoints need a conversion for that. Lightning's issues 19585 ("universal resume
checkpoint from deepspeed") and 20065 ("enable loading universal checkpointing checkpoint") ask for it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_states.py"


@pytest.mark.parametrize(
    ("first", "second", "ranks"),
    [
        ("deepspeed_stage_3", "deepspeed_stage_2", 3),
        pytest.param("deepspeed_stage_2", "deepspeed_stage_3", 3, marks=pytest.mark.slow),
        pytest.param("deepspeed_stage_1", "deepspeed_stage_1", 3, marks=pytest.mark.slow),
    ],
)
def test_a_universal_checkpoint_goes_on_at_another_stage_and_number_of_ranks(
    tmp_path, first, second, ranks
):
    result = fork_script(SCRIPT, first, second, ranks, cwd=tmp_path, timeout_s=100)
    parameters, states = result.json()
    assert parameters < 1e-6 and states < 1e-6
