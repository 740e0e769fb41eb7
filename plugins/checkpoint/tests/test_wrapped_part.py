"""A forward that wraps a part of the model in another module, whose graph keeps it alive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

LOOP = """
import os, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, die = int(sys.argv[1]), int(sys.argv[2])

class Wrapped(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x)

class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, x, *weights):
        ctx.func, ctx.weights = func, weights
        ctx.save_for_backward(x)
        return func(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            gx, *gw = torch.autograd.grad(ctx.func(x), (x, *ctx.weights), grad)
        return None, gx, *gw

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        FIRST
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        func = Wrapped(self.part)
        return self.last(torch.tanh(Again.apply(func, self.first(x), *func.parameters())))

with session(devices=ranks, batch="global", checkpoint="kept", every_n_steps=2):
    torch.manual_seed(0)
    x = torch.randn(48, 4)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for step, (a, b) in enumerate(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6)):
        loss = (model(a) - b).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == die:
            os.kill(os.getpid(), signal.SIGKILL)
    print(loss.item(), [p.tolist() for p in model.parameters()])
"""
ORDERS = [
    "self.first, self.part = nn.Linear(4, 4), nn.Linear(4, 4)",
    "self.part, self.first = nn.Linear(4, 4), nn.Linear(4, 4)",
]


@pytest.mark.parametrize(("ranks", "order"), [(1, ORDERS[0]), (1, ORDERS[1]), (2, ORDERS[1])])
def test_the_checkpoint_has_the_whole_model(
    run: Any, tmp_path: Path, ranks: int, order: str
) -> None:
    script = LOOP.replace("FIRST", order)
    whole = run(script, ranks, -1, folder=tmp_path / "whole").ok().stdout
    assert run(script, ranks, 5, folder=tmp_path / "killed").status != 0
    assert run(script, ranks, -1, folder=tmp_path / "killed").ok().stdout == whole
