"""``sequence_parallel`` and ``loss_parallel``, against one process that knows nothing of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDING = 1e-12
BOTH = ("sequence", "loss", "both")
MORE = ("dropout", "smoothing", "sum", "weights")


@pytest.mark.parametrize(
    ("strategy", "ranks", "names"),
    [
        ("tp", 2, BOTH + MORE),
        pytest.param("ddp", 4, BOTH, marks=pytest.mark.slow),
        pytest.param("fsdp", 4, BOTH, marks=pytest.mark.slow),
    ],
)
def test_the_numbers_of_one_process(strategy, ranks, names):
    """A sequence of odd length, ignored targets in unequal numbers, evaluation, clipping."""
    found = fork_script(SCRIPTS / "parallel.py", strategy, ranks, timeout_s=240).json()
    for name in names:
        difference, losses, ranks_agree = found[name]
        assert difference < ROUNDING and losses < ROUNDING and ranks_agree, name
        assert found[f"{name} after"] < ROUNDING
    assert "blocks.*.norm: SequenceParallel" in " ".join(found["explain"].split())


REFUSALS = {
    "fused": "(Linear) has parameters and is not a LayerNorm or RMSNorm, and it would see a part of",
    "flat": "sequence_parallel=True: no nn.ModuleList or nn.Sequential of Flat has blocks with",
    "style": "Gpt.blocks.0.up is in a block, and there the plan may name Linear layers, by 'colwise'",
    "input": "the first positional argument of Block must be a tensor of shape (batch, sequence",
    "no logits": "loss_parallel=True: no output of Gpt is divided in its last dimension. Name its",
    "other loss": "loss_parallel=True: this loss is a DTensor, which cross_entropy would not have",
    "type": "sequence_parallel=1 is an int: it must be True or False",
    "loss type": "loss_parallel='yes' is a str: it must be True or False",
    "cp": "unknown option 'cp': context parallel is not offered",
}


def test_what_the_plan_does_not_allow_is_refused():
    found = fork_script(SCRIPTS / "parallel_refused.py", timeout_s=240).json()
    assert {name: found[name] for name in REFUSALS if REFUSALS[name] not in found[name]} == {}
