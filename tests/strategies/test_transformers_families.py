"""Families of transformers models under every strategy, each against one process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)
SCRIPT = Path(__file__).parent / "scripts" / "transformers_families.py"
FAMILIES = (
    *("Llama", "Qwen2", "Mixtral", "GPTNeoX", "Gemma", "GPT2", "OPT", "Bert", "T5", "ViT", "Mamba"),
    *("Mistral", "DistilBert", "Bart", "Whisper", "CLIP"),
)
BETWEEN = "the loss compares samples with each other"
REFUSED = {
    "ddp": {"CLIP": BETWEEN},
    "deepspeed": {"CLIP": BETWEEN},
    "fsdp": {"CLIP": "CLIPModel.logit_scale has no dimension, and strategy='fsdp' divides dim 0"},
    "pipeline": {"T5": "dim of what encoder.block.0 of T5ForConditionalGeneration returns, before"},
    "tp": {
        "GPT2": "transformer.h.*.attn: c_attn computes queries, keys and values in one layer",
        "Bert": "no layer for its output is beside its queries, keys and values",
        "Mamba": "plan='auto' found no attention and no MLP that it knows",
    },
}


def judge(strategy: str, *families: str) -> None:
    """Each of these is exact, or refused or warned of as is expected."""
    options = "{'plan': 'auto'}" if strategy == "tp" else "{}"
    found = fork_script(SCRIPT, strategy, options, *families, timeout_s=300).json()
    assert {*found} == {*families}
    wanted = REFUSED.get(strategy, {})
    for family, outcome in found.items():
        if family in wanted:
            assert wanted[family] in str(outcome), (family, outcome)
        else:
            assert isinstance(outcome, float) and outcome < 5e-6, (family, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tp", "pipeline", "deepspeed", "dp"])
def test_each_family(strategy):
    judge(strategy, *FAMILIES)
