"""Loops for test_precision.py. ``python precision.py FILE`` runs those written by hand, and knows nothing of torchbus."""

from __future__ import annotations

import contextlib
import json

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 22
BATCH = 3  # the last one of an epoch is smaller


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 3, generator=generator), torch.randn(SAMPLES, 1, generator=generator)


def values(*nets):
    return [value for net in nets for parameter in net.parameters() for value in parameter.detach().double().reshape(-1).tolist()]


KINDS = {
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=6.4, momentum=0.9),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "groups": lambda parameters: torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 3.0}], lr=6.4),
    "closures": lambda parameters: torch.optim.SGD(parameters, lr=6.4),
    "replaced": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "compiled": lambda parameters: torch.optim.SGD(parameters, lr=6.4),
}


def make(dtype, kind="plain"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    return net, *make_optimizer(net, kind)


def make_optimizer(net, kind):
    optimizer = KINDS[kind](list(net.parameters()))
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def unchanged(batch, dtype=torch.float64, kind="plain"):
    """What anybody writes."""
    net, optimizer, scheduler = make(dtype, kind)
    forward = torch.compile(net, backend="eager") if kind == "compiled" else net
    losses = []
    for epoch in range(2):
        if kind == "replaced" and epoch:
            optimizer, scheduler = make_optimizer(net, "foreach")
        for x, y in DataLoader(TensorDataset(*data()), batch_size=batch):

            def closure(x=x, y=y, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (forward(x.to(dtype)) - y).square().mean() / 64  # small enough for float16
                loss.backward()
                losses.append(loss.item())
                return loss

            if kind == "closures":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            scheduler.step()
    return values(net)


def by_hand(batch, window=1, clip=None, cast=None, dtype=torch.float64, kind="plain"):
    """Accumulation, clipping, autocast and loss scaling by hand; each batch weighted by its samples."""
    net, optimizer, scheduler = make(dtype, kind)
    scaler = torch.amp.GradScaler("cpu", enabled=cast == torch.float16)
    inputs, targets = data()
    for epoch in range(2):
        if kind == "replaced" and epoch:
            optimizer, scheduler = make_optimizer(net, "foreach")
        for start in range(0, SAMPLES, batch * window):
            optimizer.zero_grad()
            x, y = inputs[start : start + batch * window], targets[start : start + batch * window]
            for part, target in zip(x.split(batch), y.split(batch), strict=True):
                with torch.autocast("cpu", cast) if cast else contextlib.nullcontext():
                    output = net(part.to(dtype))
                output = output.float() if cast else output
                scaler.scale((output - target).square().mean() / 64 * (len(part) / len(x))).backward()
            scaler.unscale_(optimizer)
            if clip:
                clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    return values(net)


def gan_nets():
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 3).double(), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return generator, critic, torch.optim.Adam(generator.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.5)


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
            sums = {net: [torch.zeros_like(parameter) for parameter in net.parameters()] for net in (generator, critic)}
            for part in block.split(batch):
                fake = generator(part)
                add(sums[critic], torch.autograd.grad(critic_loss(critic, part, fake), list(critic.parameters())), len(part) / len(block))
                if part is block.split(batch)[-1] or part.data_ptr() == block.split(batch)[-1].data_ptr():
                    step(of_critic, critic, sums[critic])
                of_fake = (critic(fake) - 1).square().mean()
                add(sums[generator], torch.autograd.grad(of_fake, list(generator.parameters())), len(part) / len(block))
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
    """The classic GAN of Lightning's documentation: two optimizers, accumulation over two batches, flushed at the end."""
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
        others = [parameter for other in nets if other is not optimizer for group in other.param_groups for parameter in group["params"]]
        for parameter in others:
            parameter.requires_grad_(False)
        yield
        for parameter in others:
            parameter.requires_grad_(True)

    return toggled(batch, freeze_the_other, lambda index, loader: index + 1 == len(loader))


def tokens(batch, weigh=lambda count: None):
    """A mean over tokens, of which each sample has another number."""
    net, optimizer, _ = make(torch.float64)
    inputs, targets = data()
    for x, y, count in DataLoader(TensorDataset(inputs, targets, torch.arange(SAMPLES) % 5), batch_size=batch):
        optimizer.zero_grad()
        weigh(count.sum().item())
        (((net(x.double()) - y).square().squeeze(1) * count).sum() / count.sum().clamp(min=1) / 64).backward()
        optimizer.step()
    return values(net)


def sparse(batch):
    """The gradients of a table of which a batch uses a few rows."""
    torch.manual_seed(0)
    table = nn.Embedding(10, 2, sparse=True).double()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for (index,) in DataLoader(TensorDataset(torch.arange(SAMPLES) % 7), batch_size=batch):
        optimizer.zero_grad()
        table(index).square().mean().backward()
        optimizer.step()
    return values(table)


def expected(ranks):
    """What every case of test_precision.py must reach."""
    found = {"gan": gan_by_hand(3 * ranks, 2), "toggle": toggled_by_hand(2 * ranks), "tokens": tokens(3 * ranks * 3)}
    batch = BATCH * ranks
    found["sparse"] = sparse(batch * 3)
    found |= {f"kind {kind}": by_hand(batch, 3, 0.001, kind=kind) for kind in KINDS if kind != "plain"}
    found |= {"accumulate": by_hand(batch, 3), "clip": by_hand(batch, 1, 0.001), "accumulate clip": by_hand(batch, 3, 0.001)}
    for word, cast in (("16", torch.float16), ("bf16", torch.bfloat16)):
        found[word] = by_hand(batch, 1, None, cast, torch.float32)
        found[f"{word} clip"] = by_hand(batch, 1, 0.001, cast, torch.float32)
        found[f"{word} accumulate"] = by_hand(batch, 3, None, cast, torch.float32)
        found[f"{word} accumulate clip"] = by_hand(batch, 3, 0.001, cast, torch.float32)
    return found


if __name__ == "__main__":
    print(json.dumps({ranks: expected(ranks) for ranks in (1, 2)}))
