"""A loop whose epochs draw a subset of the data, train a generator and its critic, and evaluate
with noise; the best value decides a learning rate.

Prints a digest of everything that was trained. ``--die N`` kills rank ``--whom`` with SIGKILL in
the N-th place of this process where it can die: after a step, in evaluation, between epochs.
"""

import argparse
import hashlib
import os
import random
import signal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

parser = argparse.ArgumentParser()
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--die", type=int, default=-1)
parser.add_argument("--whom", type=int, default=0)
parser.add_argument("--loop", default="range")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--every", type=int, default=2)
args = parser.parse_args()
NUM_EPOCHS = 4
places = 0


def may_die(s):
    global places
    places += 1
    if places == args.die and s.rank == args.whom % s.world_size:
        os.kill(os.getpid(), signal.SIGKILL)


def train(s):
    generator = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    critic = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.02)
    c_optimizer = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.9)
    data, rng = torch.randn(60, 3), np.random.default_rng(1)
    test = DataLoader(TensorDataset(data[:9]), batch_size=3)
    best, epochs_since = float("inf"), 0
    for _ in s.epochs(NUM_EPOCHS) if args.loop == "epochs" else range(NUM_EPOCHS):
        # in eval mode all ranks draw alike
        chosen = (
            torch.randperm(60)[:20].tolist()
            + rng.permutation(60)[:4].tolist()
            + random.sample(range(60), 4)
        )
        generator.train(), critic.train()
        for i, (x,) in enumerate(
            DataLoader(TensorDataset(data[chosen]), batch_size=4, shuffle=True)
        ):
            fake = generator(torch.randn_like(x))
            c_optimizer.zero_grad()
            (critic(fake.detach()).mean() - critic(x).mean()).backward()
            c_optimizer.step()
            if i % 3 == 2:
                g_optimizer.zero_grad()
                (-critic(fake)).mean().backward()
                g_optimizer.step()
            may_die(s)
        generator.eval(), critic.eval()
        value = random.random() + float(np.random.rand())
        with torch.no_grad():
            for (x,) in test:
                may_die(s)
                value += critic(generator(x + torch.randn_like(x))).mean().item()
        best, epochs_since = (value, 0) if value < best else (best, epochs_since + 1)
        for group in c_optimizer.param_groups:
            group["lr"] = 0.05 / (1 + epochs_since)
        may_die(s)
    weights = [*generator.parameters(), *critic.parameters()]
    return [weight.detach().numpy().tobytes() for weight in weights]


random.seed(0), np.random.seed(0), torch.manual_seed(0)
more = {"accumulate_grad_batches": args.accumulate} if args.accumulate > 1 else {}
with session(
    strategy="ddp",
    devices=args.ranks,
    launch="fork",
    checkpoint="checkpoints",
    every_n_steps=args.every,
    **more,
) as s:
    print("end", hashlib.sha256(b"".join(train(s))).hexdigest())
