"""All loops, by name."""

from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import TensorDataset

LOOPS = {}


def loop(function):
    LOOPS[function.__name__] = function
    return function


def numbers(*shape, seed=5):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(high, *shape, seed=6):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def points(r, width=6, kinds=4):
    return TensorDataset(numbers(r.size, width), classes(kinds, r.size))


def mlp(*sizes):
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def train_step(r, opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
    r.log(loss)
