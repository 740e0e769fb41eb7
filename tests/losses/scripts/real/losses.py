"""Losses of several terms, penalties and other means."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from real.table import classes, loop, mlp, numbers, points, train_step


@loop
def uncertainty_weights(r):
    """Kendall: tasks are weighed by parameters of their own, and labels are missing."""
    trunk, heads = mlp(6, 8, 8), nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 1), nn.Linear(8, 3)])
    log_vars = nn.Parameter(torch.zeros(3))
    opt = torch.optim.Adam([*trunk.parameters(), *heads.parameters(), log_vars], 1e-2, eps=1e-3)
    y = classes(4, r.size)
    y[torch.arange(r.size) % 7 == 0] = -100
    data = TensorDataset(numbers(r.size, 6), y, numbers(r.size, 1, seed=3), classes(3, r.size))
    for _ in range(2):
        for x, a, b, c in r.loader(data, shuffle=True):
            h = trunk(x)
            losses = [
                F.cross_entropy(heads[0](h), a),
                F.smooth_l1_loss(heads[1](h), b),
                F.cross_entropy(heads[2](h), c, weight=torch.tensor([1.0, 2.0, 0.5])),
            ]
            loss = sum(torch.exp(-v) * one + v for v, one in zip(log_vars, losses))
            train_step(r, opt, loss)
    trunk.log_vars = log_vars
    return [trunk, heads]


@loop
def two_backwards_tasks(r):
    """Each task by a backward of its own."""
    trunk, one, two = mlp(6, 8, 8), nn.Linear(8, 4), nn.Linear(8, 2)
    opt = torch.optim.SGD([*trunk.parameters(), *one.parameters(), *two.parameters()], lr=0.1)
    data = TensorDataset(numbers(r.size, 6), classes(4, r.size), numbers(r.size, 2, seed=3))
    for x, y, z in r.loader(data):
        opt.zero_grad()
        h = trunk(x)
        first, second = F.cross_entropy(one(h), y), F.l1_loss(two(h), z)
        first.backward(retain_graph=True)
        second.backward()
        opt.step()
        r.log(second)
    return [trunk, one, two]


@loop
def early_exits(r):
    """A loss at each exit, all of them started together."""
    parts = nn.ModuleList([mlp(6, 8, 8), mlp(8, 8, 8)])
    exits = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
    opt = torch.optim.SGD([*parts.parameters(), *exits.parameters()], lr=0.1)
    for x, y in r.loader(points(r), shuffle=True):
        losses = []
        for part, out in zip(parts, exits):
            x = part(x)
            losses.append(F.cross_entropy(out(x), y))
        opt.zero_grad()
        torch.autograd.backward(losses)
        opt.step()
    return [parts, exits]


@loop
def penalties(r):
    """L1 and L2 of the weights, and an orthogonal penalty, in the loss."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in r.loader(points(r), shuffle=True):
            w = model[0].weight
            loss = F.cross_entropy(model(x), y)
            loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
            loss = loss + 1e-3 * w.abs().sum() + 1e-2 * (w.T @ w - torch.eye(6)).norm()
            train_step(r, opt, loss)
    return [model]


@loop
def pinn(r):
    """A residual in the batch, and a boundary that is the same for all."""
    model = mlp(2, 8, 1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    boundary = numbers(9, 2, seed=4)
    for _ in range(2):
        for (x,) in r.loader(TensorDataset(numbers(r.size, 2)), shuffle=True):
            x = x.requires_grad_()
            u = model(x)
            (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            residual = (du[:, 0] + u[:, 0] * du[:, 1]).square().mean()
            loss = residual + 0.5 * F.mse_loss(model(boundary), torch.zeros(9, 1))
            train_step(r, opt, loss)
    return [model]


@loop
def times_rows(r):
    """A mean, multiplied by the samples again."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    for x, y in r.loader(points(r), shuffle=True):
        train_step(r, opt, F.cross_entropy(model(x), y) * x.size(0))
    return [model]


@loop
def over_data_set(r):
    """A sum over the batch, as a part of that over the data set."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    for x, y in r.loader(points(r), shuffle=True):
        train_step(r, opt, F.cross_entropy(model(x), y, reduction="sum") / r.size)
    return [model]


@loop
def positives(r):
    """Detection: sums over the positive boxes, divided by their number as Python counts it."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in r.loader(points(r), shuffle=True):
        is_positive = y > 1
        number = max(1, int(is_positive.sum()))
        out = model(x)
        box = F.smooth_l1_loss(out[is_positive], x[is_positive, :4], reduction="sum") / number
        train_step(r, opt, box)
    return [model]


@loop
def dice(r):
    """A ratio of sums over the batch."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in r.loader(points(r), shuffle=True):
        p, t = model(x).sigmoid(), F.one_hot(y, 4).double()
        loss = 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
        train_step(r, opt, loss)
    return [model]


@loop
def dice_per_sample(r):
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in r.loader(points(r), shuffle=True):
        p, t = model(x).sigmoid(), F.one_hot(y, 4).double()
        ratio = (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)
        train_step(r, opt, (1 - ratio).mean())
    return [model]


@loop
def hard_examples(r):
    """OHEM: the worst half of the batch."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in r.loader(points(r), shuffle=True):
        each = F.cross_entropy(model(x), y, reduction="none")
        train_step(r, opt, each.topk(max(1, len(x) // 2)).values.mean())
    return [model]
