"""Compares loops under horovod with one process without Horovod."""

import json
import os
import sys
import threading

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_horovod._compat import graph_task
from torchbus_horovod.reductions import OUTSIDE
from torchbus_horovod.strategy import Horovod

RANKS, FP16 = int(sys.argv[1]), sys.argv[2] == "fp16"
torch.manual_seed(7)
DATA = TensorDataset(torch.randn(37, 6), torch.randn(37, 3))
found = {}


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first = nn.Linear(6, 16, dtype=dtype)
        self.middle = nn.ModuleList([nn.Linear(16, 16, dtype=dtype) for _ in range(3)])
        self.last = nn.Linear(16, 3, dtype=dtype)

    def forward(self, x, reentrant=False):
        x = self.first(x)
        for layer in self.middle:
            x = checkpoint(layer, x, use_reentrant=True) if reentrant else layer(x)
            x = torch.tanh(x)
        return self.last(x)


def train(size, make=torch.optim.AdamW, clip=None, reentrant=False, dtype=torch.float32):
    torch.manual_seed(1)
    model = Net(dtype)
    optimizer = make(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    printed = []
    for _ in range(2):
        for x, y in DataLoader(
            DATA, size, shuffle=True, generator=torch.Generator().manual_seed(3)
        ):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x.to(dtype), reentrant), y.to(dtype))
            loss.backward()
            if clip:
                printed.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
            optimizer.step()
            scheduler.step()
            printed.append(loss.item())
    return nn.utils.parameters_to_vector(model.parameters()).detach(), printed


def compare(name, **words):
    alone, numbers = train(6 * RANKS, **words)
    options = {"compression": "fp16"} if FP16 else {}
    with session(
        strategy="horovod", devices=RANKS, accelerator="cpu", launch="fork", **options
    ) as s:
        together, told = train(6, **words)
        same = [torch.equal(together, one) for one in s.all_gather_object(together)]
        explained = s.explain()
    found[name] = [
        float((together - alone).abs().max()),
        max(abs(a - b) for a, b in zip(told, numbers, strict=True)),
    ]
    found["same"] = [*found.get("same", []), *same]
    found["explain"] = " ".join(explained.split())


class Watched:
    """Horovod, with notes of the averages that start."""

    def __init__(self):
        self.notes = []

    def __getattr__(self, name):
        return getattr(hvd, name)

    def allreduce_async_(self, tensor, **words):
        number = words["name"].rpartition(".")[2]
        self.notes.append(f"{number} after" if graph_task() == OUTSIDE else number)
        return hvd.allreduce_async_(tensor, **words)


class Watching(Horovod):
    def reductions(self, session, trained):
        self._hvd = self.watched = Watched()
        return super().reductions(session, trained)


def order_of_a_backward(reentrant):
    """Return notes of one backward on rank 0: the numbers of gradients in the order in which
    Horovod starts to average them, with "after" if the graph has run. "first" stands where the
    graph reaches the first layer.
    """
    strategy = Watching()
    with session(strategy=strategy, devices=RANKS, accelerator="cpu", launch="fork"):
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = next(iter(DataLoader(DATA, 6)))
        loss = F.mse_loss(model(x, reentrant), y)
        model.first.weight.register_hook(lambda _: strategy.watched.notes.append("first"))
        loss.backward()
        optimizer.step()
        return strategy.watched.notes


def shared(use_reentrant):
    """Train with the same layer inside of a checkpoint and outside of it."""
    with session(strategy="horovod", devices=RANKS, accelerator="cpu", launch="fork"):
        torch.manual_seed(1)
        layer = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for x, _ in DataLoader(DATA, 6):
            optimizer.zero_grad()
            inner = checkpoint(layer, x.requires_grad_(), use_reentrant=use_reentrant)
            layer(torch.tanh(inner)).square().mean().backward()
            optimizer.step()


def main():
    before = set(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    compare("adamw", clip=1.0)
    if not FP16:
        compare("sgd", make=torch.optim.SGD)
        compare("reentrant", reentrant=True)
        compare("double", dtype=torch.float64)
        found["plain order"] = order_of_a_backward(False)
        found["reentrant order"] = order_of_a_backward(True)
        shared(False)
        try:
            shared(True)
        except Exception as error:
            found["shared"] = str(error)
    found["threads"] = [thread.name for thread in threading.enumerate()]
    found["variables"] = [name for name in os.environ if name.startswith(("HOROVOD", "GLOO"))]
    found["tasks"] = len(os.listdir("/proc/self/task")) - before[1]
    found["descriptors"] = len(set(os.listdir("/proc/self/fd"))) - len(before[0])
    print(json.dumps(found))


main()
