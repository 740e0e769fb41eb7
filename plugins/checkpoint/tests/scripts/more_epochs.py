"""Continue finished runs with more epochs: loops in the block, in a function and in a method."""

import gc
import json
import sys
from pathlib import Path

import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from torchbus import session

from torchbus_checkpoint.disk.folder import read_file

gc.freeze()


def made():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
    order = torch.Generator().manual_seed(5)
    loader = DataLoader(torch.randn(12, 4), 4, shuffle=True, generator=order)
    return net, torch.optim.Adam(net.parameters(), lr=0.1), loader


def step(net, optimizer, x):
    optimizer.zero_grad()
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def function(epochs):
    generator, optimizer, loader = made()
    schedule = StepLR(optimizer, 3, 0.5)
    noise, count, best, names = torch.Generator().manual_seed(7), 0, 99.0, ""
    for epoch in epochs:
        total = 0.0
        for x in loader:
            total += step(generator, optimizer, x + torch.rand(1, generator=noise))
            count += 1
        schedule.step()
        best, names = min(best, total), f"{names}{epoch}"
    return generator, [count, best, names, schedule.get_last_lr(), generator[0].bias.tolist()]


class Trainer:
    def __init__(self):
        self.net, self.optimizer, self.loader = made()
        self.schedule = StepLR(self.optimizer, 3, 0.5)
        self.noise = torch.Generator().manual_seed(7)
        self.count, self.best, self.names = 0, 99.0, ""

    def fit(self, epochs):
        for epoch in epochs:
            total = 0.0
            for x in self.loader:
                total += step(self.net, self.optimizer, x + torch.rand(1, generator=self.noise))
                self.count += 1
            self.schedule.step()
            self.best, self.names = min(self.best, total), f"{self.names}{epoch}"
        rates, bias = self.schedule.get_last_lr(), self.net[0].bias.tolist()
        return self.net, [self.count, self.best, self.names, rates, bias]


def run(place, count, ranks, **options):
    with session(devices=ranks, launch="fork", batch="global", **options) as s:
        if place == "function":
            _net, found = function(s.epochs(count))
        elif place == "method":
            _net, found = Trainer().fit(s.epochs(count))
        else:
            generator, optimizer, loader = made()
            schedule = StepLR(optimizer, 3, 0.5)
            noise, total, best, names = torch.Generator().manual_seed(7), 0, 99.0, ""
            for epoch in s.epochs(count):
                losses = 0.0
                for x in loader:
                    losses += step(generator, optimizer, x + torch.rand(1, generator=noise))
                    total += 1
                schedule.step()
                best, names = min(best, losses), f"{names}{epoch}"
            found = [total, best, names, schedule.get_last_lr(), generator[0].bias.tolist()]
            generator.eval()  # as for a test after training
            total = best = torch.rand(1, generator=noise).item()
    return found


for number, (place, ranks, options) in enumerate(json.loads(sys.argv[1])):
    whole = run(place, 4, ranks, checkpoint=f"whole{number}", **options)
    folder = Path(f"continued{number}")
    run(place, 2, ranks, checkpoint=folder, **options)
    continued = run(place, 4, ranks, checkpoint=folder, **options)
    again = run(place, 4, ranks, checkpoint=folder, **options)
    steps = sorted(found.name for found in folder.iterdir() if found.name.startswith("step"))
    print(json.dumps([continued == whole, again == whole, steps]))


def names_in(folder):
    """The names of the models in each checkpoint, and of the optimizers."""
    checkpoints = sorted(Path(folder).glob("step-*"))
    training = [read_file(checkpoint, "training") for checkpoint in checkpoints]
    return [[one["name"] for one in each["trained"] + each["optimizers"]] for each in training]


for name, epochs in (("names", None), ("names of range", range(2))):
    with session(strategy=None, checkpoint=name) as s:
        g, _ = function(epochs or s.epochs(2))
    print(json.dumps(names_in(name)))
