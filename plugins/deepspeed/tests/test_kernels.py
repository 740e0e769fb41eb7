"""DeepSpeed's optimizers step in place of the loop's: two ranks, against one process."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_kernels.py"
EXACT = 2e-6  # the operators compute in an order of their own, in float32


def run(kind, operator, strategy, timeout_s):
    return fork_script(SCRIPT, kind, operator, strategy, timeout_s=timeout_s).json()


def as_in_one_process(found):
    names = ("parameters", "printed", "states", "one step more")
    assert max(*(found[name] for name in names), *found["after"]) < EXACT, found


def test_the_operator_steps_and_the_loop_sees_its_own_class():
    """The operator's formula is here in Python."""
    found = run("AdamW", "python", "deepspeed_stage_2_offload", 115)
    as_in_one_process(found)
    assert "stepped by DeepSpeed's DeepSpeedCPUAdam" in found["explain"]
    assert found["same_layout"]


@pytest.mark.slow
def test_the_loop_may_make_deepspeeds_class_itself_and_steps_it_after_the_block():
    as_in_one_process(run("made in the loop", "python", "deepspeed_stage_2_offload", 115))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    " " in sys.prefix, reason="torch's builds of C++ do not quote paths, and this one has a space"
)
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("AdamW", "deepspeed_stage_2_offload"),
        ("Adam", "deepspeed_stage_3_offload"),
        ("Adagrad", "deepspeed_stage_2_offload"),
        ("Lion", "deepspeed_stage_2_offload"),
        ("FusedAdam", "deepspeed_stage_1"),
    ],
)
def test_the_compiled_operator_against_one_process(kind, strategy):
    """The first run of each compiles it, which takes minutes."""
    found = run(kind, "compiled", strategy, 1000)
    as_in_one_process(found)
    assert found["same_layout"]
