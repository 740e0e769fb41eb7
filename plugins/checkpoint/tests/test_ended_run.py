"""A run that had ended, started again."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session


def run(folder, count):
    """Train; return what the code after each epoch has seen."""
    seen = []
    with session(strategy=None, checkpoint=folder) as s:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in s.epochs(count) if count else range(2):
            for x in DataLoader(torch.ones(8, 2), batch_size=4):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            seen.append(model.bias.item())
    return seen


def test_what_it_leaves_out_is_said(tmp_path):
    run(tmp_path, 0)
    with pytest.warns(UserWarning, match="this run had already ended, so nothing was trained"):
        run(tmp_path, 0)


def test_over_epochs_nothing_is_left_out_after_the_loop(tmp_path, recwarn):
    seen = run(tmp_path, 2)
    assert len(seen) == 2 and run(tmp_path, 2) == seen  # a variable of the loop, restored
    assert not recwarn.list
