"""A term that joins the loss after epochs of warm-up is looked at as in the first step."""

from __future__ import annotations

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = """
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
    result = fork_script(SCRIPT, warmup_epochs)
    assert result.ok() and result.stderr.count("compares samples with each other") == 1
