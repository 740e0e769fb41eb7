"""A loop that skips a batch on some ranks."""

from __future__ import annotations

from torchbus_testing.forking import fork_script

SCRIPT = """
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    x = torch.randn(24, 3)
    x[9, 1] = float("nan")  # in the second half of the second batch
    with session(devices=2, batch="global", accelerator="cpu") as s:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (a,) in DataLoader(TensorDataset(x), batch_size=6):
            loss = model(a).square().mean()
            if torch.isnan(s.reduce(loss) if sys.argv[1] == "reduce" else loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("trained")
"""


def test_a_branch_on_the_loss_of_one_rank_is_named_with_its_remedy() -> None:
    refused = fork_script(SCRIPT, "plain")
    assert refused.status and "if torch.isnan(loss): continue" in refused.stderr, refused.stderr
    assert fork_script(SCRIPT, "reduce").ok().stdout == "trained\n"
