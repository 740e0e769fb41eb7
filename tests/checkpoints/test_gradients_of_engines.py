"""A checkpoint between backward and step holds the gradients, also where an engine keeps them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).parent / "scripts" / "gradients_of_engines.py"


@pytest.mark.parametrize(
    ("first", "second", "ranks", "when"),
    [
        ("deepspeed_stage_2", "deepspeed_stage_3", 2, "late"),
        pytest.param("deepspeed_stage_3", "ddp", 3, "early", marks=pytest.mark.slow),
        pytest.param("ddp", "deepspeed_stage_1", 3, "early", marks=pytest.mark.slow),
        pytest.param("deepspeed_stage_3", "deepspeed_stage_2", 3, "late", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_goes_on_ends_as_one_process(tmp_path, first, second, ranks, when):
    """Of a window of two backwards, and of a GAN whose models have each other's gradients."""
    result = fork_script(SCRIPT, first, second, ranks, when, cwd=tmp_path, timeout_s=115)
    windows, gan = result.json()
    assert windows < 1e-6 and gan < 1e-6


def test_gradients_of_one_rank_beside_those_of_all_are_refused(tmp_path):
    script = SCRIPT.with_name("local_gradients.py")
    said = fork_script(script, cwd=tmp_path, timeout_s=115).ok().stdout
    assert said.startswith(
        "a checkpoint between a backward under s.no_sync() and SGD.step(), after"
    )
    assert said.endswith("Save after the step\nsaved\n")
