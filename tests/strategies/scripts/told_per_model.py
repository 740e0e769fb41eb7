"""How many objects ranks tell each other, and of how many bytes: told_per_model.py RANKS.

Prints both for a model of 2 layers and for one of 20, as rank 0 sees them.
"""

import json
import random
import sys
import tempfile

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_checkpoint import exchange
from torchbus_strategy import collectives

told = []


def recorded(function):
    def call(*arguments):
        message = function(*arguments)
        told.append(len(message))
        return message

    return call


collectives._packed = recorded(collectives._packed)
exchange.written = recorded(exchange.written)


def seed():
    """A state of a generator has as many bytes as its numbers need, which a seed decides."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def train(layers, folder):
    seed()
    with session(
        strategy="ddp",
        devices=int(sys.argv[1]),
        accelerator="cpu",
        launch="fork",
        checkpoint=folder,
        every_n_steps=2,
        logger="local",
        log_every_n_steps=2,
    ) as s:
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.arange(96.0).view(24, 4)), 2, shuffle=True)
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            s.log("loss", loss.item(), sync_dist=True)
    return [len(told), sum(told)]


found = []
for layers in (2, 20):
    told.clear()
    with tempfile.TemporaryDirectory() as folder:
        found.append(train(layers, folder))
print(json.dumps(found))
