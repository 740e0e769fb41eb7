"""A loop like many: dropout, BatchNorm, a schedule, validation. ``--range`` or ``--epochs``;
without torchbus at ``--ranks 0``.

Prints a digest of the trained state. ``--die N`` kills the last rank with SIGKILL after its N-th
step.
"""

import argparse
import contextlib
import hashlib
import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--die", type=int, default=-1)
parser.add_argument("--loop", default="range")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--every", type=int, default=3)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--enumerate", action="store_true")
parser.add_argument("--never-clear", action="store_true")
args = parser.parse_args()


class Noisy(torch.utils.data.Dataset):
    """Augmentation with random numbers, in the process that loads."""

    def __len__(self):
        return 46

    def __getitem__(self, index):
        x = torch.full((6,), index / 46)
        return x + 0.1 * torch.randn(6), x[:1]


def train(s):
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=args.workers)
    validation = DataLoader(TensorDataset(torch.arange(24.0).reshape(4, 6)), batch_size=2)
    num_steps = 0
    for epoch in s.epochs(args.epochs) if args.loop == "epochs" else range(args.epochs):
        model.train()
        for index, (x, y) in enumerate(loader):
            if not args.never_clear:
                optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            if args.enumerate:
                loss = loss * (1 + index)
            loss.backward()
            optimizer.step()
            num_steps += 1
            if num_steps == args.die and s.rank == s.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
        model.eval()
        with torch.no_grad():
            for (x,) in validation:
                model(x)
        scheduler.step()
        print("epoch", epoch, flush=True)
    return model, optimizer


torch.manual_seed(0)
if args.ranks:
    from torchbus import session

    more = {"accumulate_grad_batches": args.accumulate} if args.accumulate > 1 else {}
    block = session(
        strategy="ddp",
        devices=args.ranks,
        launch="fork",
        checkpoint="checkpoints",
        every_n_steps=args.every,
        **more,
    )
else:
    block = contextlib.nullcontext()
with block as s:
    model, optimizer = train(s)
    states = [
        *model.state_dict().values(),
        *(value for state in optimizer.state.values() for value in state.values()),
    ]
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in states)).hexdigest()
    print(f"end {digest} lr {optimizer.param_groups[0]['lr']}")
