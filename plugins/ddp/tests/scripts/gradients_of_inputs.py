"""Gradients of tensors that no optimizer holds, in one process and on several ranks."""

import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
RANKS = int(sys.argv[1])


def of_batch(net, x, y):
    x.requires_grad_()
    F.cross_entropy(net(x), y).backward()
    return x.grad


def of_copy(net, x, y):
    x = x.clone().requires_grad_()
    F.cross_entropy(net(x), y).backward()
    return x.grad


def of_perturbation(net, x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        F.cross_entropy(net(x + delta), y).backward()
        delta.data += delta.grad
        delta.grad.zero_()
    return delta.detach()


def of_sum(net, x, y):
    noise = (x + 0.1).requires_grad_()
    for _ in range(3):
        net(noise).square().sum().backward()
        noise.data -= 0.01 * noise.grad
        noise.grad = None
    return noise.detach()


def of_frozen(net, x, y):
    net.requires_grad_(False)
    x.requires_grad_()
    net(x).square().sum().backward()
    net.requires_grad_()
    F.cross_entropy(net(x.detach() - 0.1 * x.grad), y).backward()
    return x.grad


def of_some_targets(net, x, y):
    x.requires_grad_()
    y = torch.where(x[:, 0] > 0.5, -100, y)
    F.cross_entropy(net(x), y).backward()
    return x.grad


def of_two_terms(net, x, y):
    x.requires_grad_()
    z = net(x)
    (F.cross_entropy(z, y) + z[x[:, 0] > 0].square().mean()).backward()
    return x.grad


def added_up(net, x, y):
    x.requires_grad_()
    for _ in range(2):
        F.cross_entropy(net(x), y).backward()
    return x.grad


def asked(net, x, y):
    x.requires_grad_()
    (found,) = torch.autograd.grad(F.cross_entropy(net(x), y), x)
    F.cross_entropy(net(x + found), y).backward()
    return found


def asked_of_sum(net, x, y):
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(net(x).square().sum(), x)
    F.cross_entropy(net(x + found), y).backward()
    return found


def penalty_by_grad(net, x, y):
    x.requires_grad_()
    F.cross_entropy(net(x), y).backward(create_graph=True)
    penalty, x.grad = x.grad.norm(dim=1).mean() * 5, None
    net.zero_grad()
    penalty.backward()
    return x.grad


def penalty_asked(net, x, y):
    x.requires_grad_()
    loss = F.cross_entropy(net(x), y)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + 5 * slope.norm(dim=1).mean()).backward()
    return slope.detach()


CASES = [
    of_two_terms,  # first: what terms count is compared in the first backwards
    of_batch,
    of_frozen,
    of_copy,
    of_perturbation,
    of_sum,
    of_some_targets,
    added_up,
    asked,
    asked_of_sum,
    penalty_by_grad,
    penalty_asked,
]


def train(case, gather=lambda one: [one]):
    torch.manual_seed(0)
    x = torch.randn(29, 4)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = {}  # by sample: a rank without any repeats some, whose gradients count nothing
    for rows, labels, numbers in DataLoader(
        TensorDataset(x, x[:, :3].argmax(1), torch.arange(29)), batch_size=8
    ):
        optimizer.zero_grad()
        mine = case(net, rows, labels)
        for each, gradients in zip(gather(numbers), gather(mine), strict=True):
            for number, gradient in zip(each.tolist(), gradients, strict=True):
                found.setdefault(number, gradient)
        optimizer.step()
    of_samples = [found[number] for number in range(29)]
    return torch.cat([*of_samples, *[one.detach().flatten() for one in net.parameters()]])


if __name__ == "__main__":
    alone = {case.__name__: train(case) for case in CASES}
    given = {"devices": RANKS, "strategy": "ddp", "accelerator": "cpu", "launch": "fork"}
    with session(**given, batch="global") as s, warnings.catch_warnings():
        warnings.simplefilter("error")
        together = {case.__name__: train(case, s.all_gather) for case in CASES}
    print(json.dumps({n: float((one - together[n]).abs().max()) for n, one in alone.items()}))
