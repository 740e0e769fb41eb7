"""``torchbus advise`` against what ranks send, as the loopback device of a network of its own counts
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_advise import BENCHMARKS, advised, row

RANKS = 2
TRAIN = f"""
import sys, torch
sys.path.insert(0, {str(BENCHMARKS)!r})
from traffic import WIDTH, model_and_optimizer

model, optimizer = model_and_optimizer()
for step in range(2):
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_predicted_bytes_are_those_that_ranks_send(tmp_path: Path) -> None:
    """Gloo reduces to parts by an all-reduce, which sends twice what NCCL's reduce-scatter does."""
    script = BENCHMARKS / "traffic.py"
    command = f"ip link set lo up; {sys.executable} {script} --strategies --json --ranks {RANKS}"
    result = subprocess.run(
        ["unshare", "-rn", "sh", "-c", command], capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    (tmp_path / "train.py").write_text(TRAIN)
    told = advised("--tensors", "fake", "--devices", str(RANKS), "train.py", folder=tmp_path)
    gradients = sum(one["gradient_bytes"] for one in told["facts"]["32"]["parameters"])
    for strategy, sent in measured.items():
        by_gloo = (RANKS - 1) / RANKS * gradients * strategy.startswith("fsdp")
        predicted = RANKS * (row(told, strategy, RANKS)["sent_bytes"] + by_gloo)
        assert sent == pytest.approx(predicted, rel=0.02), strategy
