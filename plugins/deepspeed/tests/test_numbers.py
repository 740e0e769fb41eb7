"""Each stage, against one process that knows nothing of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPTS = Path(__file__).parent / "scripts"
CASES = [
    pytest.param(("deepspeed_stage_1", 2), marks=pytest.mark.slow),
    pytest.param(("deepspeed_stage_2", 3), marks=pytest.mark.slow),
    ("deepspeed_stage_3", 2),
    pytest.param(("deepspeed_stage_1", 3), marks=pytest.mark.slow),
    pytest.param(("deepspeed_stage_2", 2), marks=pytest.mark.slow),
    pytest.param(("deepspeed_stage_3", 3), marks=pytest.mark.slow),
    pytest.param(("deepspeed_stage_2_offload", 2), marks=pytest.mark.slow),
    pytest.param(("deepspeed_stage_3_offload", 2), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def numbers(request) -> dict[str, Any]:
    strategy, ranks = request.param
    return dict(
        fork_script(SCRIPTS / "deepspeed_numbers.py", strategy, ranks, timeout_s=115).json()
    )


def test_parameters_states_losses_and_norms_are_those_of_one_process(numbers):
    """Two groups, a scheduler, clipping, a ragged end."""
    figures = [
        *numbers["adamw"],
        *numbers["adagrad"],
        *numbers["sgd"],
        *numbers["after"],
    ]
    assert max(figures) < 1e-6, numbers


def test_a_gan_needs_no_setup_of_its_own(numbers):
    """Lightning's issue 19773, "How to train GAN with deepspeed which need to setup fabric twice?":
    there, each backward has to name the model whose engine is meant.
    """
    assert max(numbers["gan"]) < 1e-6, numbers


def test_accumulated_windows_are_those_of_one_process(numbers):
    """The loop calls ``zero_grad`` in the middle of each window."""
    assert numbers.get("windows", [0.0])[0] < 1e-6  # stage 3 refuses them


def test_after_the_block_the_model_is_a_plain_one(numbers):
    assert all(numbers["plain"])


def test_explain_names_the_stage(numbers):
    text = numbers["explain"]
    assert "ZeRO stage" in text and "divided by DeepSpeed" in text
    assert "435 parameters in 6 tensors" in text  # of whole ones: stage 3 leaves empty tensors
