import json
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import RanksDiverged

torch.manual_seed(0)
x, y = torch.randn(96, 4), torch.randint(3, (96,))
F = nn.functional


def train(make, loss_of=None, change=lambda optimizer, step, s: None, batch_size=4, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = "ok"
        try:
            with session(**{"strategy": "ddp", "devices": 2, "launch": "fork", **options}) as s:
                model, optimizer = make(s)
                for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), batch_size)):
                    optimizer.zero_grad()
                    loss = (
                        F.cross_entropy(model(xb), yb)
                        if loss_of is None
                        else loss_of(s, model(xb), yb, step)
                    )
                    loss.backward()
                    change(optimizer, step, s)
                    optimizer.step()
        except RanksDiverged as error:
            told = str(error)
    return [told, [str(one.message) for one in caught]]


def plain(s):
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


class Odd(nn.Module):
    "Whose repr has an address, and a name of its own"

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(4, 3)

    def forward(self, x):
        return self.part(x)

    def extra_repr(self):
        return f"{object()!r}, {id(self):#x}"


def optimized(model, kind=torch.optim.SGD, **options):
    return model, kind(model.parameters(), **options)
