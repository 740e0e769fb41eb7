"""Loops that are alike for long, and then change, give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchbus_simulator
from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "changing.py"
SLOW = pytest.mark.slow
ON_SIM = pytest.mark.skipif(torchbus_simulator.missing() is not None, reason="needs a compiler")


@pytest.mark.parametrize(
    ("ranks", "accelerator", "window", "loops"),
    [
        (2, "cpu", 1, 20),
        (2, "cpu", 2, 7),
        pytest.param(3, "cpu", 1, 20, marks=SLOW),
        pytest.param(3, "cpu", 2, 7, marks=SLOW),
        pytest.param(2, "sim", 1, 4, marks=[SLOW, ON_SIM, pytest.mark.timeout(400)]),
    ],
)
def test_loops_that_change_after_many_alike_steps(ranks, accelerator, window, loops):
    result = fork_script(SCRIPT, ranks, accelerator, window, timeout_s=380)
    assert result.ok() and (window > 1 or result.stderr == "")
    assert result.stderr.count("Warning:") == result.stderr.count("computes 'loss'")
    apart = result.json()
    assert len(apart) == loops
    assert {name: value for name, value in apart.items() if value > 1e-12} == {}


LATE_TERM = """
    import sys
    import torch
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    with session(devices=2, batch="global", accelerator="cpu"):
        torch.manual_seed(0)
        x = torch.randn(64, 3)
        body, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
        for epoch in range(int(sys.argv[1]) + 1):
            for a, b in loader:
                z = body(a)
                loss = F.cross_entropy(head(z), b)
                if epoch >= int(sys.argv[1]):
                    pairs = F.normalize(z) @ F.normalize(z).T
                    loss = loss + F.cross_entropy(pairs, torch.arange(len(a)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""


@pytest.mark.parametrize("warmup_epochs", [0, 2])
def test_a_contrastive_term_is_warned_of(warmup_epochs: int) -> None:
    result = fork_script(LATE_TERM, warmup_epochs)
    assert result.ok() and result.stderr.count("compares samples with each other") == 1
