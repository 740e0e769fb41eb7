"""Loops as people write them. ``s`` is a session or ``Alone``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from .cut_training import DATA, Clock, make, step

Loop = Callable[[Any, Clock], Any]


def manual_accumulation(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    for epoch in range(2):
        for i, (x,) in enumerate(DataLoader(DATA, batch_size=2, shuffle=True)):
            (model(x).square().mean() / (3 + epoch)).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            clock()
    return [*model.parameters()]


def plateau_of_a_running_loss(s: Any, clock: Clock) -> Any:
    """The loop's own variables decide: a running loss, a best value, a patience."""
    model, optimizer = make()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    loader = DataLoader(DATA, batch_size=5, shuffle=True)
    best, history = float("inf"), []
    for _ in s.epochs(4):
        running = 0.0
        for i, (x,) in enumerate(loader):  # noqa: B007
            running += step(model, optimizer, x) * (2 if running > best else 1)
            clock()
        scheduler.step(running / (i + 1))
        best = min(best, running)
        history.append(running)
    return [*model.parameters(), torch.tensor([best, optimizer.param_groups[0]["lr"], *history])]


def two_optimizers(s: Any, clock: Clock) -> Any:
    """A GAN's five to one, with noise of its own generator."""
    (generator, g_optimizer), (critic, c_optimizer) = make(), make()
    noise = torch.Generator().manual_seed(5)
    loader = DataLoader(
        DATA, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    for _ in s.epochs(3):
        for i, (x,) in enumerate(loader):
            fake = generator(torch.randn(len(x), 3, generator=noise)) * x
            c_optimizer.zero_grad()
            (critic(fake.detach()).mean() - critic(x).mean()).backward()
            c_optimizer.step()
            if i % 5 == 4:
                g_optimizer.zero_grad()
                (-critic(fake).mean()).backward()
                g_optimizer.step()
            clock()
    return [*generator.parameters(), *critic.parameters()]


def endless_batches(s: Any, clock: Clock) -> Any:
    model, optimizer = make()

    def batches() -> Any:
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
        while True:
            yield from loader

    for number, (x,) in enumerate(batches()):
        step(model, optimizer, x * (1 + number))
        clock()
        if number == 14:
            return [*model.parameters()]


def own_counter(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    loader = DataLoader(DATA, batch_size=4, shuffle=True)
    num_steps = 0
    while num_steps < 14:
        for (x,) in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + num_steps)
            step(model, optimizer, x)
            num_steps += 1
            clock()
            if num_steps == 14:
                break
    return [*model.parameters()]


def steps_of_an_iterator(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    batches = iter(DataLoader(DATA, batch_size=1, shuffle=True))
    for number in s.epochs(20):
        (x,) = next(batches)
        step(model, optimizer, x * (1 + number))
        clock()
    return [*model.parameters()]


def without_loaders(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    for _ in s.epochs(10):
        index = random.sample(range(22), 4)
        step(model, optimizer, DATA.tensors[0][index] + torch.randn(4, 3))
        clock()
    return [*model.parameters()]


def zipped(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    one, other = (
        DataLoader(DATA, batch_size=3, shuffle=True),
        DataLoader(DATA, batch_size=4, shuffle=True),
    )
    for _ in range(3):
        for (x,), (y,) in zip(one, other, strict=False):
            step(model, optimizer, torch.cat([x, y]))
            clock()
    return [*model.parameters()]


def frozen_then_thawed(s: Any, clock: Clock) -> Any:
    """Statistics over the data before the first step; a layer that is frozen at first; an average
    of the weights; a log that is kept.
    """
    model, optimizer = make()
    loader = DataLoader(DATA, batch_size=4, shuffle=True)
    mean = torch.cat([x for (x,) in loader]).mean(0)
    average = torch.optim.swa_utils.AveragedModel(model)
    model[0].requires_grad_(False)
    for epoch in s.epochs(4):
        if epoch == 2:
            model[0].requires_grad_(True)
        for (x,) in loader:
            step(model, optimizer, x - mean)
            average.update_parameters(model)
            clock()
    return [*model.parameters(), *average.parameters()]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.arange(60.0).reshape(20, 3) / 60)


def streamed(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    for _ in range(3):
        for x in DataLoader(Stream(), batch_size=3):
            step(model, optimizer, x)
            clock()
    return [*model.parameters()]


class Trainer:
    """Its own class, with a counter."""

    def __init__(self) -> None:
        self.model, self.optimizer = make()
        self.num_steps, self.losses = 0, []

    def fit(self, clock: Clock) -> None:
        loader = DataLoader(DATA, batch_size=5, shuffle=True)
        for _ in range(3):
            self.train_epoch(loader, clock)

    def train_epoch(self, loader: Any, clock: Clock) -> None:
        self.model.train()
        for (x,) in loader:
            self.num_steps += 1
            self.losses.append(step(self.model, self.optimizer, x * self.num_steps))
            clock()


def own_class(s: Any, clock: Clock) -> Any:
    trainer = Trainer()
    trainer.fit(clock)
    return [*trainer.model.parameters(), torch.tensor(trainer.losses)]


class Going:
    """A sampler whose passes go on where the last one has ended."""

    def __init__(self) -> None:
        self.start, self.order = 0, np.arange(len(DATA))

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            if self.start % len(DATA) == 0:
                np.random.shuffle(self.order)
            self.start += 1
            yield int(self.order[self.start % len(DATA)])

    def __len__(self) -> int:
        return 15


def samples_that_go_on(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    loader = DataLoader(DATA, batch_size=4, sampler=Going())
    for _ in s.epochs(4):
        for (x,) in loader:
            step(model, optimizer, x)
            clock()
    return [*model.parameters()]


class Groups:
    """A batch sampler that each pass shuffles in place."""

    def __init__(self) -> None:
        self.groups = [list(range(start, min(start + 4, len(DATA)))) for start in range(0, 22, 4)]

    def __iter__(self) -> Any:
        random.shuffle(self.groups)
        yield from self.groups

    def __len__(self) -> int:
        return len(self.groups)


def groups_in_place(s: Any, clock: Clock) -> Any:
    model, optimizer = make()
    loader = DataLoader(DATA, batch_sampler=Groups())
    for _ in range(3):
        for (x,) in loader:
            step(model, optimizer, x)
            clock()
    return [*model.parameters()]


LOOPS = [
    manual_accumulation,
    plateau_of_a_running_loss,
    two_optimizers,
    endless_batches,
    own_counter,
    steps_of_an_iterator,
    without_loaders,
    zipped,
    frozen_then_thawed,
    streamed,
    own_class,
    samples_that_go_on,
    groups_in_place,
]
