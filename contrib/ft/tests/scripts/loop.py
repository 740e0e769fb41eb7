"""A loop with Adam, dropout, BatchNorm and a scheduler, which says what became of it.

``pace`` s a step. A file ``hold`` in the folder, with a number of a batch, lets every replica stop
there until the file is gone. ``die`` says where this process kills itself: "step:7" before the
eighth step, "reduce:7" inside its all-reduce.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_ft import FT

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--samples", type=int, default=160)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--die", default="")
parser.add_argument("--hold", type=int, default=-1)
parser.add_argument("--min-replicas", type=int, default=1)
parser.add_argument("--timeout", type=float, default=20.0)
parser.add_argument("--no-norm", action="store_true")
args = parser.parse_args()
name = os.environ["REPLICA_GROUP_ID"]
kind, _, at = args.die.partition(":")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_inside_reduce(s) -> None:
    """The connection goes while the others wait in the all-reduce."""
    from torchft.process_group import ProcessGroupGloo

    before = ProcessGroupGloo.allreduce

    def allreduce(self, tensors, opts):
        if steps == int(at):
            time.sleep(0.3)
            die()
        return before(self, tensors, opts)

    ProcessGroupGloo.allreduce = allreduce


x = torch.randn(args.samples, 4, generator=torch.Generator().manual_seed(0)).double()
y = x.sum(1, keepdim=True).sin()
ledger = args.out / f"ledger-{name}-{os.getpid()}"
strategy = FT(min_replicas=args.min_replicas, timeout_s=args.timeout)
steps, losses = 0, []
with session(strategy, devices=args.devices, sample_ledger=ledger) as s:
    norm = [] if args.no_norm else [nn.BatchNorm1d(8)]
    model = nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = DataLoader(TensorDataset(x, y), 4, shuffle=True, num_workers=args.workers)
    if kind == "reduce":
        kill_inside_reduce(s)
    (args.out / f"began-{name}").touch()
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            while steps == args.hold and (args.out / "hold").exists():
                time.sleep(0.01)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            if kind == "step" and steps == int(at):
                die()
            optimizer.step()
            scheduler.step()
            steps += 1
            losses.append(loss.item())
        with torch.no_grad():
            model(x)
    print(s.explain())
    if s.is_main:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "steps": steps,
            "losses": losses,
        }
        torch.save(state, args.out / f"end-{name}.tmp")
        os.replace(args.out / f"end-{name}.tmp", args.out / f"end-{name}.pt")
