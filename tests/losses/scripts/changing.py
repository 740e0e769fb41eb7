"""Loops that are alike for so long that little is looked at any more, and then change.

Each runs in one plain process with whole batches, and then on the ranks with their parts.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

RANKS, ALIKE, STEPS, BATCH = int(sys.argv[1]), 16, 22, 6


class Loop:
    """Trains, and changes what it does after ``ALIKE`` steps."""

    def __init__(self, rows=RANKS * BATCH * STEPS):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.other = nn.Linear(4, 3).double()
        both = [*self.model.parameters(), *self.other.parameters()]
        self.optimizer = torch.optim.SGD(both, lr=0.01)
        labels = torch.randint(3, (rows,))
        labels[RANKS * BATCH * ALIKE :][torch.rand(rows - RANKS * BATCH * ALIKE) < 0.4] = -100
        self.data = TensorDataset(torch.randn(rows, 4).double(), torch.randint(3, (rows,)), labels)
        self.seen = 0.0

    def run(self, parts):
        loader = DataLoader(self.data, BATCH * RANKS // parts)
        for _ in range(2):
            for step, (x, y, some) in enumerate(loader):
                self.optimizer.zero_grad()
                self.step(x, y, some, step >= ALIKE)
                self.optimizer.step()
        held = [
            one.detach().flatten() for one in (*self.model.parameters(), *self.other.parameters())
        ]
        return torch.cat([*held, torch.tensor([self.seen])]).tolist()

    def step(self, x, y, some, changes):
        loss = self.loss(x, y, some, changes)
        loss.backward()
        self.seen += loss.item()

    def loss(self, x, y, some, changes):
        return F.cross_entropy(self.model(x), y)


class IgnoredTargets(Loop):
    def loss(self, x, y, some, changes):
        return F.cross_entropy(self.model(x), some if changes else y)


class TwoTerms(Loop):
    def loss(self, x, y, some, changes):
        loss = F.cross_entropy(self.model(x), y)
        return loss + 0.5 * self.other(x).square().mean() if changes else loss


class Sums(Loop):
    def loss(self, x, y, some, changes):
        out = self.model(x)
        return F.mse_loss(out, x[:, :3], reduction="sum" if changes else "mean")


class Divided(Loop):
    def loss(self, x, y, some, changes):
        each = F.cross_entropy(self.model(x), some, reduction="none")
        return each.sum() / (some >= 0).sum() if changes else each.mean()


class Ragged(Loop):
    def __init__(self):
        super().__init__(RANKS * BATCH * STEPS - 5)


class Frozen(Loop):
    def step(self, x, y, some, changes):
        self.model[0].requires_grad_(not changes)
        super().step(x, y, some, changes)


class OtherModel(Loop):
    def loss(self, x, y, some, changes):
        return F.cross_entropy((self.other if changes else self.model)(x), y)


class Hooked(Loop):
    def step(self, x, y, some, changes):
        weight = self.model[0].weight
        hooks = (
            [weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))] if changes else []
        )
        if changes:
            hooks.append(self.model[2].weight.register_post_accumulate_grad_hook(doubled))
        super().step(x, y, some, changes)
        for hook in hooks:
            hook.remove()


def doubled(parameter):
    parameter.grad.mul_(2)


class Twice(Loop):
    def step(self, x, y, some, changes):
        super().step(x, y, some, changes)
        if changes:
            super().step(x * 2, y, some, changes)


class Assigned(Loop):
    def step(self, x, y, some, changes):
        if not changes:
            return super().step(x, y, some, changes)
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(self.loss(x, y, some, changes), parameters)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient


class NewOptimizer(Loop):
    def step(self, x, y, some, changes):
        if changes and not isinstance(self.optimizer, torch.optim.Adam):
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        super().step(x, y, some, changes)


class Buffers(Loop):
    def loss(self, x, y, some, changes):
        if changes and not hasattr(self, "norm"):
            self.norm = nn.BatchNorm1d(4).double().eval()
        return F.cross_entropy(self.model(self.norm(x) if changes else x), y)


KINDS = (
    *(IgnoredTargets, TwoTerms, Sums, Divided, Ragged, Frozen, OtherModel, Hooked, Twice),
    *(Assigned, NewOptimizer, Buffers),
)
wanted = [kind() for kind in KINDS]
plain = [loop.run(1) for loop in wanted]
with session(strategy="ddp", devices=RANKS, accelerator="cpu", launch="fork"):
    ours = [kind().run(RANKS) for kind in KINDS]
apart = {
    kind.__name__: max(abs(a - b) for a, b in zip(one, other))
    for kind, one, other in zip(KINDS, plain, ours)
}
print(json.dumps(apart))
