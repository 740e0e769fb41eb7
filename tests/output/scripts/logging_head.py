import json
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import RanksDiverged


class Hears:
    def __init__(self):
        self.lines = []

    @hookimpl
    def metrics_ready(self, metrics, step):
        self.lines.append([step, metrics])

    def of(self, name):
        return [metrics[name] for step, metrics in self.lines if name in metrics]


def loop(loader, epochs=1):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x[:, None]).mean().backward()
            optimizer.step()
            yield x


def tell(s, hears, **more):
    with open(f"told{s.rank}-{os.getpid()}.json", "w") as file:
        json.dump({"rank": s.rank, "lines": hears.lines, **more}, file)
