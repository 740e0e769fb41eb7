"""Loops whose epochs differ by what happens between their passes.

``s`` is a session or ``Alone``; ``epochs`` is ``range`` or ``s.epochs``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from .cut_training import DATA, Clock, make, step

Epochs = Callable[[int], Any]
X = DATA.tensors[0]


def best_of_evaluations(epochs: Epochs, clock: Clock) -> Any:
    """Evaluation over a loader of its own, with noise; the best weights are kept, and a patience
    counts.
    """
    model, optimizer = make()
    train, test = DataLoader(DATA, batch_size=5, shuffle=True), DataLoader(DATA, batch_size=8)
    best, patience, kept, values = float("inf"), 0, {}, []
    for _ in epochs(4):
        model.train()
        for (x,) in train:
            step(model, optimizer, x)
            clock()
        model.eval()
        value = 0.0
        with torch.no_grad():
            for (x,) in test:
                clock()
                value += model(x + 0.1 * torch.randn_like(x)).square().sum().item()
        if value < best:
            best, patience, kept = (
                value,
                0,
                {name: weight.clone() for name, weight in model.state_dict().items()},
            )
        else:
            patience += 1
        values.append(value)
    return [*model.parameters(), *kept.values(), torch.tensor([best, patience, *values])]


def evaluated_within_epochs(epochs: Epochs, clock: Clock) -> Any:
    """Every third batch, with the loop's own count of them."""
    model, optimizer = make()
    train, test = (
        DataLoader(DATA, batch_size=3, shuffle=True),
        DataLoader(DATA, batch_size=8, shuffle=True),
    )
    num_steps, values = 0, []
    for _ in epochs(3):
        for (x,) in train:
            step(model, optimizer, x)
            num_steps += 1
            clock()
            if num_steps % 3 == 0:
                with torch.no_grad():
                    values.append(sum(model(y).sum().item() for (y,) in test))
    return [*model.parameters(), torch.tensor(values)]


def subset_of_each_epoch(epochs: Epochs, clock: Clock) -> Any:
    """Drawn from torch's, Python's and NumPy's generators, and from generators of the
    loop's own.
    """
    model, optimizer = make()
    own, of_numpy, of_python = (
        torch.Generator().manual_seed(2),
        np.random.default_rng(3),
        random.Random(4),
    )
    sizes = []
    for _ in epochs(4):
        chosen = torch.randperm(22)[:12].tolist() + torch.randperm(22, generator=own)[:2].tolist()
        chosen += random.sample(range(22), 2) + np.random.permutation(22)[:2].tolist()
        chosen += of_numpy.permutation(22)[:2].tolist() + of_python.sample(range(22), 2)
        sizes.append(len(set(chosen)))
        for (x,) in DataLoader(Subset(DATA, sorted(chosen)), batch_size=5, shuffle=True):
            step(model, optimizer, x + torch.randn(3, generator=own))
            clock()
    return [*model.parameters(), torch.tensor(sizes)]


def folds(epochs: Epochs, clock: Clock) -> Any:
    """A new split, and a new layer, in each."""
    model, optimizer = make()
    for _ in epochs(3):
        with torch.no_grad():
            model[2].weight.copy_(torch.randn(1, 5))
        part, rest = random_split(DATA, [16, 6])
        for (x,) in DataLoader(part, batch_size=4, shuffle=True):
            step(model, optimizer, x)
            clock()
        for (x,) in DataLoader(rest, batch_size=4):
            step(model, optimizer, x)
            clock()
    return [*model.parameters()]


def five_to_one(epochs: Epochs, clock: Clock) -> Any:
    """A generator and a critic, in passes of their own, which make unlike numbers of steps."""
    (generator, g_optimizer), (critic, c_optimizer) = make(), make()
    noise = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=5, shuffle=True)
    real = DataLoader(DATA, batch_size=4, shuffle=True)
    for _ in epochs(3):
        for (x,) in real:
            c_optimizer.zero_grad()
            (
                critic(generator(torch.randn_like(x)).detach() * x).mean() - critic(x).mean()
            ).backward()
            c_optimizer.step()
            clock()
        for (z,) in noise:
            g_optimizer.zero_grad()
            critic(generator(z) * z).mean().neg().backward()
            g_optimizer.step()
            clock()
    return [*generator.parameters(), *critic.parameters()]


def accumulated(epochs: Epochs, clock: Clock) -> Any:
    """Windows of three batches, and epochs of eight; a warm-up over some of the batches, left by
    ``break``.
    """
    model, optimizer = make()
    train = DataLoader(DATA, batch_size=3, shuffle=True)
    for epoch in epochs(3):
        for i, (x,) in enumerate(train):
            (model(x).square().mean() / 3).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            clock()
            if i == 4 + epoch:
                break
    return [*model.parameters()]


def looked_at_first(epochs: Epochs, clock: Clock) -> Any:
    """A batch to look at, whose iterator lives on for a while; statistics over the data; a second
    head that is made half-way.
    """
    model, optimizer = make()
    train = DataLoader(DATA, batch_size=4, shuffle=True)
    batches = iter(train)
    first = next(batches)[0].mean()
    mean = torch.cat([x for (x,) in train]).mean(0)
    noise = nn.Parameter(torch.randn(3), requires_grad=False)
    for epoch in epochs(3):
        if epoch == 1:
            del batches
        noise.copy_(torch.randn(3))
        for (x,) in train:
            step(model, optimizer, x - mean + first + noise)
            clock()
    return [*model.parameters(), noise]


LOOPS = [
    best_of_evaluations,
    evaluated_within_epochs,
    subset_of_each_epoch,
    folds,
    five_to_one,
    accumulated,
    looked_at_first,
]
