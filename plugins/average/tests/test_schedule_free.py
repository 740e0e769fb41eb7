"""Optimizers of the package schedulefree, against the same loop by hand."""

from __future__ import annotations

import pytest
import torch
from torchbus import session
from torchbus.errors import UsageError

schedulefree = pytest.importorskip("schedulefree", reason="schedulefree is not installed")
x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3)


def trained(by_hand):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.1)
    seen = []
    for _ in range(3):
        model.train()
        if by_hand:
            optimizer.train()
        for _ in range(4):
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
            optimizer.step()
        model.eval()
        if by_hand:
            optimizer.eval()
        seen.append(model.weight.detach().clone())
    return torch.stack(seen)


def test_the_optimizer_changes_its_mode_with_its_model():
    with session(schedule_free=True):
        found = trained(by_hand=False)
    assert torch.equal(found, trained(by_hand=True))


def test_an_optimizer_without_modes_is_named():
    with session(schedule_free=True):
        parameter = torch.nn.Parameter(torch.ones(1))
        with pytest.raises(UsageError, match=r"SGD has no train\(\) and eval\(\)"):
            torch.optim.SGD([parameter], lr=0.1)


def test_without_the_option_nothing_is_called():
    with session(schedule_free=False), pytest.raises(Exception, match="train mode"):
        trained(by_hand=False)
