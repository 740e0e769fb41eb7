"""Loops of several kinds. The replica named b dies in step ``--die``, inside an all-reduce.

Each loop ends with the parameters, the number of real steps, and that of the scheduler.
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

from torchbus_ft.strategy import FT

parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--lighthouse")
parser.add_argument("--out", type=Path)
parser.add_argument("--loop")
parser.add_argument("--die", type=int, default=-1)
parser.add_argument("--peers", type=int, default=2)
parser.add_argument("--algorithm", default="")
parser.add_argument("--inside", default="ddp")
parser.add_argument("--devices", type=int, default=1)
args = parser.parse_args()

x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0)).double()
y = x.sum(1, keepdim=True).sin()
reduces = 0


def net(outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def die_inside(at: int) -> None:
    """Kill this process in the all-reduce number ``at`` of gradients."""
    from torchft.process_group import ProcessGroupGloo

    before = ProcessGroupGloo.allreduce

    def allreduce(self, tensors, opts):
        global reduces
        reduces += 1
        if reduces == at + 1 and s.is_main:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return before(self, tensors, opts)

    ProcessGroupGloo.allreduce = allreduce


def loader(**words) -> DataLoader:
    return DataLoader(TensorDataset(x, y), 4, shuffle=True, **words)


def begin() -> None:
    (args.out / f"began-{args.name}").touch()
    while len(list(args.out.glob("began-*"))) < args.peers:
        time.sleep(0.01)


def gan_step(one, other, first, second, inputs) -> None:
    second.zero_grad()
    (other(inputs).mean() - other(one(inputs).detach()).mean()).backward()
    second.step()
    first.zero_grad()
    other(one(inputs)).mean().backward()
    first.step()


def gan() -> dict[str, object]:
    """Two optimizers, each with a separate backward in every batch."""
    one, other = net(4), net()
    first = torch.optim.Adam(one.parameters(), 0.01)
    second = torch.optim.Adam(other.parameters(), 0.01)
    begin()
    for inputs, _ in loader():
        gan_step(one, other, first, second, inputs)
    return {"one": one.state_dict(), "other": other.state_dict(), "states": first.state_dict()}


def shared() -> dict[str, object]:
    """Two optimizers that step after one backward."""
    one, other = net(4), net()
    first = torch.optim.Adam(one.parameters(), 0.01)
    second = torch.optim.SGD(other.parameters(), 0.01, momentum=0.9)
    begin()
    for inputs, targets in loader():
        first.zero_grad(), second.zero_grad()
        nn.functional.mse_loss(other(one(inputs)), targets).backward()
        first.step(), second.step()
    return {"one": one.state_dict(), "other": other.state_dict(), "states": second.state_dict()}


def closure() -> dict[str, object]:
    """LBFGS, which calls backward several times in a step."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    begin()
    for inputs, targets in loader():

        def evaluate():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(evaluate)
    return {"model": model.state_dict(), "states": optimizer.state_dict()}


def window() -> dict[str, object]:
    """Two batches a step, of which only the second communicates."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    begin()
    for number, (inputs, targets) in enumerate(loader()):
        with s.accumulating(number % 2 == 0):
            (nn.functional.mse_loss(model(inputs), targets) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {"model": model.state_dict(), "states": optimizer.state_dict()}


def windows() -> dict[str, object]:
    """A GAN in windows that the session makes, of which the last one of the pass is ragged."""
    one, other = net(4), net()
    first = torch.optim.Adam(one.parameters(), 0.01)
    second = torch.optim.Adam(other.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(first, 2, 0.5)
    begin()
    for inputs, _ in loader(drop_last=True):
        gan_step(one, other, first, second, inputs)
        schedule.step()
    return {
        "one": one.state_dict(),
        "other": other.state_dict(),
        "states": first.state_dict(),
        "schedule": schedule.state_dict(),
    }


def workers() -> dict[str, object]:
    """Batches that worker processes read ahead."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    ahead = loader(num_workers=2)
    begin()
    for _ in range(2):
        for inputs, targets in ahead:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return {"model": model.state_dict(), "states": optimizer.state_dict()}


def local() -> dict[str, object]:
    """Replicas that average after four independent steps, and at the end of a pass."""
    model = nn.Sequential(nn.BatchNorm1d(4).double(), net())
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    batches = loader()
    begin()
    alike = []
    for _ in range(2):
        for number, (inputs, targets) in enumerate(batches):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            if number % 4 == 1:
                alike.append(float(next(model.parameters()).sum()))
    return {"model": model.state_dict(), "alike": alike}


def own_batches() -> dict[str, object]:
    """Batches that the script makes itself."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    begin()
    for step in range(12):
        optimizer.zero_grad()
        inputs, targets = s.shard(x[step * 8 : step * 8 + 8], y[step * 8 : step * 8 + 8])
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"model": model.state_dict(), "states": optimizer.state_dict()}


strategy = FT(
    lighthouse=args.lighthouse,
    replica=args.name,
    timeout_s=15.0,
    quorum_timeout_s=15.0,
    sync_every=4,
    replica_strategy=args.inside,
)
words = {"gradient_algorithm": args.algorithm} if args.algorithm else {}
words["devices"] = args.devices
if args.loop == "windows":
    words["accumulate_grad_batches"] = 5
ledger = args.out / f"ledger-{args.name}-{os.getpid()}"
if args.name == "b":
    die_inside(args.die) if args.die >= 0 else None
torch.manual_seed(1)
with session(strategy=strategy, sample_ledger=ledger, launch="fork", **words) as s:
    made = globals()[args.loop]()
    torch.save(made | {"explain": s.explain()}, args.out / f"end-{args.name}.pt")
