"""A checkpoint between backward and step, where an engine keeps the gradients.

Arguments: the first strategy, the second one, its ranks, and "early" (the checkpoint is loaded
before the first forward) or "late" (engines have run).
"""

import json
import sys
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

first, second, ranks, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.manual_seed(3)
ROWS, SAVED = 12, 2
NUMBERS = torch.arange(6).repeat_interleave(ROWS)
DATA = TensorDataset(torch.randn(len(NUMBERS), 4), torch.randn(len(NUMBERS), 3), NUMBERS)


def net(*sizes):
    return nn.Sequential(nn.Linear(*sizes[:2]), nn.Tanh(), nn.Linear(*sizes[1:]))


class Windows:
    """Two backwards to each step, and the checkpoint between them."""

    def __init__(self):
        torch.manual_seed(1)
        self.models = [net(4, 8, 3)]
        self.optimizer = torch.optim.AdamW(self.models[0].parameters(), lr=0.01)

    def batch(self, number, x, y):
        F.mse_loss(self.models[0](x), y).backward()
        if number % 2:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Gan:
    """The checkpoint stands between the two steps: each model has gradients of the other's loss."""

    def __init__(self):
        torch.manual_seed(1)
        self.models = self.generator, self.critic = net(4, 8, 3), net(3, 8, 1)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=0.01)

    def batch(self, number, x, y):
        if number % 2:
            self.of_generator.zero_grad()
            self.critic(self.generator(x)).mean().neg().backward()
            self.of_generator.step()
        else:
            self.of_critic.zero_grad()
            self.critic(y).mean().neg().backward()
            self.critic(self.generator(x).detach()).square().mean().backward()
            self.of_critic.step()


def train(loop, epochs, save=None):
    for _ in epochs:
        for x, y, number in DataLoader(DATA, ROWS):
            loop.batch(int(number[0]), x, y)
            if save is not None and number[0] == SAVED:
                return save()


def flat(loop):
    states = [model.state_dict().values() for model in loop.models]
    return torch.cat([one.reshape(-1) for values in states for one in values])


def opened(strategy, count):
    options = {"launch": "fork", "accelerator": "cpu", "batch": "global"}
    return session("checkpoint", strategy=strategy, devices=count, **options)


def difference(kind):
    train(whole := kind(), range(1))
    with opened(first, 2) as s:
        train(kind(), s.epochs(1), save=partial(s.save, kind.__name__))
    with opened(second, ranks) as s:
        loop = kind()
        if when == "late":
            made = DATA[:ROWS][0]
            for model in loop.models:
                made = model(made)
            made.mean().backward()
        s.load(kind.__name__)
        train(loop, s.epochs(1))
        one, other = flat(whole), flat(loop)
    return float((one - other).abs().max() / one.abs().max())


print(json.dumps([difference(Windows), difference(Gan)]))
