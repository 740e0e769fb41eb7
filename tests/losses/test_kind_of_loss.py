"""A plain sum over samples is said, whichever strategy takes it for a mean."""

from __future__ import annotations

import pytest
from torchbus.testing import fork_script

SCRIPT = """
import sys
import torch
from torchbus import session

options = {"shard_gradients": True} if sys.argv[1] == "ddp_sharded" else {}
with session(strategy=sys.argv[1], devices=2, launch="fork", accelerator="cpu", **options) as s:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(4, 3) + s.rank).square()
    (loss.sum() if sys.argv[2] == "sum" else loss.mean()).backward()
    optimizer.step()
    print(s.explain())
"""
SAID = "the loss looks like a sum over samples, but is treated as a mean"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_sharded"])
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_sum_is_said_once_and_in_explain(strategy: str, kind: str) -> None:
    result = fork_script(SCRIPT, strategy, kind, timeout_s=60).ok()
    expected = 1 if kind == "sum" else 0
    assert result.stderr.count(SAID) == expected, result.stderr
    assert " ".join(result.stdout.split()).count(SAID) == expected
