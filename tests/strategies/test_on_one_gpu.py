"""Two ranks that share one GPU, against one process. Only gloo lets them, and it only averages."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from torchbus_testing.scripts import start

SCRIPT = Path(__file__).parent / "scripts" / "on_one_gpu.py"
GLOBAL = {"batch": "global"}
ROUNDING = {"float64": 1e-11, "float32": 1e-5}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def run(strategy: str, options: dict[str, object], dtype: str) -> float:
    """The difference that rank 0 prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    env |= {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    command = [sys.executable, str(SCRIPT), strategy, json.dumps(options), dtype]
    with ExitStack() as ranks:
        started = [
            ranks.enter_context(start(command, env=env | {"RANK": rank, "GROUP_RANK": rank}))
            for rank in ("0", "1")
        ]
        results = [one.wait(100) for one in started]
    assert all(result.ok() for result in results)
    return float(results[0].stdout)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", GLOBAL),
        ("dp", {}),
        ("ddp_sharded", GLOBAL),
    ],
    ids=str,
)
def test_two_ranks_are_one_process(strategy, options):
    assert run(strategy, options, "float64") < ROUNDING["float64"]


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(
    "strategy",
    ["deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", "deepspeed_stage_3_offload"],
)
def test_two_ranks_of_deepspeed(strategy):
    assert run(strategy, GLOBAL, "float32") < ROUNDING["float32"]
