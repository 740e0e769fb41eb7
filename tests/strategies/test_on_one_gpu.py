"""Two ranks that share one GPU, against one process, over gloo and over NCCL."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from torchbus_testing.environments import run_on_separate_hosts

SCRIPT = Path(__file__).parent / "scripts" / "on_one_gpu.py"
GLOBAL = {"batch": "global"}
ROUNDING = {"float64": 1e-11, "float32": 1e-5}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def run(strategy: str, options: dict[str, object], dtype: str) -> float:
    """The difference that rank 0 prints."""
    results = run_on_separate_hosts([str(SCRIPT), strategy, json.dumps(options), dtype], 2)
    assert all(result.ok() for result in results)
    return float(results[0].stdout)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", GLOBAL),
        ("dp", {}),
        ("ddp_sharded", GLOBAL),
        ("fsdp", GLOBAL),
    ],
    ids=str,
)
def test_two_ranks_are_one_process(strategy, options, backend):
    if strategy == "fsdp" and backend == "gloo":
        pytest.skip("fully_shard scatters, which gloo does not do on GPUs")
    assert run(strategy, options | {"backend": backend}, "float64") < ROUNDING["float64"]


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(
    "strategy",
    ["deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", "deepspeed_stage_3_offload"],
)
def test_two_ranks_of_deepspeed(strategy):
    assert run(strategy, GLOBAL, "float32") < ROUNDING["float32"]
