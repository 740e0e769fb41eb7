import itertools
import json
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchbus import session
from torchbus.errors import Unsupported

warnings.filterwarnings("ignore", message=".*set_vital.*")
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.arange(53.0))


def train(loader, stop=None, seen=None):
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen = [] if seen is None else seen
    for (x,) in loader:
        optimizer.zero_grad()
        (model(x[:, None]) - 1).square().mean().backward()
        optimizer.step()
        seen.append(x.tolist())
        if len(seen) == stop:
            break
    return seen, model.weight.item()


def ranks(**options):
    return session(strategy="ddp", devices=2, launch="fork", **options)


found = {}
