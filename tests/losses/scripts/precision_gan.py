"""Two optimizers in one loop, for precision.py: a GAN, and one that toggles."""

from __future__ import annotations

import contextlib

import torch
from precision_data import data, values
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def gan_nets():
    torch.manual_seed(0)
    generator, critic = (
        nn.Linear(3, 3).double(),
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
    )
    return (
        generator,
        critic,
        torch.optim.Adam(generator.parameters(), lr=0.01),
        torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.5),
    )


def critic_loss(critic, real, fake):
    return (critic(real) - 1).square().mean() + critic(fake.detach()).square().mean()


def gan(batch):
    """Two optimizers; the generator's loss reaches the critic's parameters."""
    generator, critic, of_generator, of_critic = gan_nets()
    for _ in range(2):
        for x, _ in DataLoader(TensorDataset(*data()), batch_size=batch):
            fake = generator(x.double())
            of_critic.zero_grad()
            critic_loss(critic, x.double(), fake).backward()
            of_critic.step()
            of_generator.zero_grad()
            (critic(fake) - 1).square().mean().backward()
            of_generator.step()
    return values(generator, critic)


def gan_by_hand(batch, window):
    generator, critic, of_generator, of_critic = gan_nets()
    for _ in range(2):
        for block in data()[0].double().split(batch * window):
            sums = {
                net: [torch.zeros_like(parameter) for parameter in net.parameters()]
                for net in (generator, critic)
            }
            for part in block.split(batch):
                fake = generator(part)
                add(
                    sums[critic],
                    torch.autograd.grad(critic_loss(critic, part, fake), list(critic.parameters())),
                    len(part) / len(block),
                )
                if (
                    part is block.split(batch)[-1]
                    or part.data_ptr() == block.split(batch)[-1].data_ptr()
                ):
                    step(of_critic, critic, sums[critic])
                of_fake = (critic(fake) - 1).square().mean()
                add(
                    sums[generator],
                    torch.autograd.grad(of_fake, list(generator.parameters())),
                    len(part) / len(block),
                )
            step(of_generator, generator, sums[generator])
    return values(generator, critic)


def add(sums, gradients, weight):
    for total, gradient in zip(sums, gradients, strict=True):
        total += weight * gradient


def step(optimizer, net, gradients):
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def toggled(batch, toggle, is_last):
    """The classic GAN of Lightning's documentation: two optimizers, accumulation over two batches,
    flushed at the end.
    """
    generator, critic, of_generator, of_critic = gan_nets()
    for _ in range(2):
        loader = DataLoader(TensorDataset(data()[0][:20]), batch_size=batch)
        for index, (x,) in enumerate(loader):
            steps = (index + 1) % 2 == 0 or is_last(index, loader)
            fake = generator(x.double())
            with toggle(of_critic, sync_grad=steps):
                critic_loss(critic, x.double(), fake).backward()
                if steps:
                    of_critic.step()
                    of_critic.zero_grad()
            with toggle(of_generator, sync_grad=steps):
                (critic(fake) - 1).square().mean().backward()
                if steps:
                    of_generator.step()
                    of_generator.zero_grad()
    return values(generator, critic)


def toggled_by_hand(batch):
    nets = []

    @contextlib.contextmanager
    def freeze_the_other(optimizer, sync_grad):
        nets.append(optimizer)
        others = [
            parameter
            for other in nets
            if other is not optimizer
            for group in other.param_groups
            for parameter in group["params"]
        ]
        for parameter in others:
            parameter.requires_grad_(False)
        yield
        for parameter in others:
            parameter.requires_grad_(True)

    return toggled(batch, freeze_the_other, lambda index, loader: index + 1 == len(loader))
