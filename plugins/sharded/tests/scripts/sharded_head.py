import copy
import json
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torchbus import session

from torchbus_testing.models import ConvNet, Transformer

torch.set_default_dtype(torch.float64)
found = {}


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
        )


MODELS = {
    "mlp": Mlp,
    "convolutional net": lambda: ConvNet(2),
    "transformer": lambda: Transformer(2, layers=2),
}


def data():
    g = torch.Generator().manual_seed(1)
    return list(
        zip(torch.randn(24, 6, generator=g).split(8), torch.randn(24, 2, generator=g).split(8))
    )


def steps(model, optimizer, mine, clip=0.5):
    printed = []
    for x, y in data():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        printed += [loss.item(), float(norm)]
    return printed


def train(make, mine):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    printed = steps(model, optimizer, mine)
    model.eval()
    with torch.no_grad():
        printed.append(float(model(data()[0][0]).sum()))
    values = {name: value.clone() for name, value in model.state_dict().items()}
    return (
        torch.cat([torch.tensor(printed), *(value.reshape(-1) for value in values.values())]),
        model,
        optimizer,
    )


def opened(strategy, **options):
    if strategy == "ddp_sharded, gradients too":
        strategy, options["shard_gradients"] = "ddp_sharded", True
    return session(
        strategy=strategy,
        devices=2,
        accelerator="cpu",
        launch="fork",
        replace_sampler=False,
        **options,
    )


def part(s):
    return slice(4 * s.rank, 4 * s.rank + 4)
