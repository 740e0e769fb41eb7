"""Trains, and writes its pid, so that a test can kill it, and its loss after each epoch.

``--seed`` is that of the order; ``--plain`` is the loop without torchbus.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_ft.strategy import FT

parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--lighthouse")
parser.add_argument("--out", type=Path)
parser.add_argument("--epochs", type=int)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--least", type=int, default=1)
args = parser.parse_args()


def tell() -> int:
    """Write and return the number of steps."""
    place = args.out / f"at-{args.name}"
    place.with_suffix(".new").write_text(str(steps()))
    place.with_suffix(".new").rename(place)
    return steps()


def steps() -> int:
    return 0 if args.plain else strategy.steps


def wait(epoch: int) -> None:
    """Leave time for kills, and more in the last epochs, which a busy machine may reach early."""
    if not args.plain and not (args.out / "enough").exists():
        time.sleep(0.02 if epoch < 0.75 * args.epochs else 1.0)


x = torch.randn(1200, 4, generator=torch.Generator().manual_seed(0)).double()
y = x.sum(1, keepdim=True).sin()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()
torch.manual_seed(args.seed)
ledger = args.out / f"ledger-{args.name}-{os.getpid()}"
strategy = FT(
    lighthouse=args.lighthouse,
    replica=args.name,
    min_replicas=args.least,
    timeout_s=20.0,
    quorum_timeout_s=110.0,
)
block = session(strategy=strategy, sample_ledger=ledger, launch="fork")
with contextlib.nullcontext() if args.plain else block:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loader = DataLoader(TensorDataset(x, y), args.batch, shuffle=True)
    (args.out / f"pid-{args.name}").write_text(str(os.getpid()))
    for epoch in range(args.epochs):
        stepped = -1
        for inputs, targets in loader:
            wait(epoch)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            stepped = tell()
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x), y).item()
        # else this replica got the state of a later epoch, in which the others were
        if stepped == steps():
            (args.out / f"loss-{args.name}-{epoch}").write_text(str(loss))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, args.out / f"end-{args.name}.pt")
