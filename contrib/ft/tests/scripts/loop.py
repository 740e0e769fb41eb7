"""Trains with Adam, BatchNorm and a scheduler, and saves the final state.

``--die`` says where this process kills itself: "step:7" before the eighth step, "reduce:7" while
the others wait for it in the all-reduce. From step ``--hold`` on, a replica waits for the file
``go``, and runs slowly while no other replica takes part. ``--peers`` begin at the same time.
``--plain`` is the loop without torchbus.
"""

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_ft.strategy import FT

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="")
parser.add_argument("--lighthouse")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--samples", type=int, default=160)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--die", default="")
parser.add_argument("--peers", type=int, default=1)
parser.add_argument("--hold", type=int, default=-1)
parser.add_argument("--min-replicas", type=int, default=1)
parser.add_argument("--timeout", type=float, default=20.0)
parser.add_argument("--no-norm", action="store_true")
parser.add_argument("--windows", type=int, default=1)
parser.add_argument("--inside", default="ddp")
args = parser.parse_args()
name = args.name
kind, _, at = args.die.partition(":")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_inside_reduce() -> None:
    """The others wait in the all-reduce when the connection goes."""
    from torchft.process_group import ProcessGroupGloo

    before = ProcessGroupGloo.allreduce

    def allreduce(self, tensors, opts):
        if steps == int(at) and s.is_main:
            time.sleep(0.3)
            die()
        return before(self, tensors, opts)

    ProcessGroupGloo.allreduce = allreduce


def wait_for_others() -> None:
    while not (args.out / "go").exists():
        time.sleep(0.01)
    if strategy.participants == 1:
        time.sleep(0.1)


x = torch.randn(args.samples, 4, generator=torch.Generator().manual_seed(0)).double()
y = x.sum(1, keepdim=True).sin()
torch.manual_seed(1)
steps, losses, lasts, block = 0, [], [], contextlib.nullcontext()
if not args.plain:
    strategy = FT(
        lighthouse=args.lighthouse,
        replica=name,
        min_replicas=args.min_replicas,
        timeout_s=args.timeout,
        quorum_timeout_s=args.timeout,
        replica_strategy=args.inside,
    )
    ledger = args.out / f"ledger-{name}-{os.getpid()}"
    how = {"accumulate_grad_batches": args.windows} if args.windows > 1 else {}
    block = session(
        strategy=strategy, devices=args.devices, sample_ledger=ledger, launch="fork", **how
    )
with block as s:
    norm = [] if args.no_norm else [nn.BatchNorm1d(8)]
    model = nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = DataLoader(TensorDataset(x, y), args.batch, shuffle=True, num_workers=args.workers)
    if kind == "reduce":
        die_inside_reduce()
    (args.out / f"began-{name}").touch()
    while len(list(args.out.glob("began-*"))) < args.peers:
        time.sleep(0.01)
    for epoch in range(args.epochs):
        lasts.append([])
        for inputs, targets in loader:
            if args.windows > 1:
                lasts[-1].append(s.is_last_batch)
            if 0 <= args.hold <= steps:
                wait_for_others()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            if kind == "step" and steps == int(at) and s.is_main:
                die()
            optimizer.step()
            scheduler.step()
            steps += 1
            losses.append(loss.item())
        with torch.no_grad():
            model(x)
    if not args.plain:
        print(s.explain())
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "steps": steps,
        "losses": losses,
        "lasts": lasts,
    }
    if args.plain or s.is_main:
        torch.save(state, args.out / f"end-{name}.pt")
