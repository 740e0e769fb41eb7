"""Loops that are alike for so long that little is looked at any more, and then change.

Each runs on the ranks with their parts of the batches, and then in one plain process with whole
ones. With a window, of those that do not look at gradients between steps, one plain step is that of
several batches of each rank. The arguments: the number of ranks, the accelerator, the window.
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
if sys.argv[2] == "sim":
    import torchbus_simulator

    torchbus_simulator.load(devices=RANKS)


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

    def run(self, parts, window=1):
        loader = DataLoader(self.data, BATCH * RANKS * window // parts)
        for _ in range(2):
            for step, (x, y, some) in enumerate(loader):
                self.optimizer.zero_grad()
                self.step(x, y, some, step * window >= ALIKE)
                self.optimizer.step()
        held = [
            one.detach().flatten().cpu()
            for one in (*self.model.parameters(), *self.other.parameters())
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


class MeanOfEach(Loop):
    def loss(self, x, y, some, changes):
        each = F.cross_entropy(self.model(x), y, reduction="none")
        return (each * self.other(x)[:, 0].sigmoid() if changes else each).mean()


class NamedParts(Loop):
    """The loop holds the parts of its loss, and reads them after backward."""

    def step(self, x, y, some, changes):
        first = self.loss(x, y, some, changes)
        second = self.other(x).square().mean()
        loss = torch.stack([first, second]).mean() if changes else first
        loss.backward()
        self.seen += first.item() + loss.item()


class Retained(Loop):
    def step(self, x, y, some, changes):
        loss = self.loss(x, y, some, changes)
        loss.backward(retain_graph=changes)
        if changes:
            (loss * 2).backward()


class Doubled(Loop):
    """Gradients of an earlier backward are there, and are added to."""

    def step(self, x, y, some, changes):
        self.loss(x, y, some, changes).backward()
        if changes:
            F.cross_entropy(self.model(x + 1), y).backward()


class Weighed(Loop):
    def step(self, x, y, some, changes):
        loss = self.loss(x, y, some, changes)
        loss.backward(torch.full_like(loss, 0.5) if changes else None)


class Replaced(Loop):
    """The values of parameters move to other memory, and a parameter to another optimizer group."""

    def step(self, x, y, some, changes):
        if changes:
            for one in self.model.parameters():
                one.data = one.data * 0.99
        if changes and len(self.optimizer.param_groups) == 1:
            last = [self.optimizer.param_groups[0]["params"].pop()]
            self.optimizer.add_param_group({"params": last, "lr": 0.1})
        super().step(x, y, some, changes)


class Evaluated(Loop):
    """Evaluates in between, and trains on with the model in the other mode."""

    def step(self, x, y, some, changes):
        if changes:
            self.model.eval()
            with torch.no_grad():
                for batch, _, _ in DataLoader(self.data, 50):
                    self.seen += self.model(batch).sum().item()
            self.model.train()
        super().step(x, y, some, changes)


class OfInputs(Loop):
    """The batch itself gets a gradient."""

    def step(self, x, y, some, changes):
        x.requires_grad_(changes)
        super().step(x, y, some, changes)
        if changes:
            moved = x.detach() + x.grad.sign()
            super().step(moved, y, some, changes)


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
    *(Assigned, NewOptimizer, Buffers, MeanOfEach, NamedParts, Retained, Doubled, Weighed),
    *(Replaced, Evaluated, OfInputs),
)
IN_WINDOWS = (IgnoredTargets, TwoTerms, Divided, Ragged, Frozen, OtherModel, MeanOfEach)
# there, the first loss that counts something other than samples is weighed by these
ON_ACCELERATORS = (TwoTerms, Ragged, Frozen, MeanOfEach)

window = int(sys.argv[3])
kinds = ON_ACCELERATORS if sys.argv[2] != "cpu" else KINDS if window == 1 else IN_WINDOWS
options = {"strategy": "ddp", "devices": RANKS, "accelerator": sys.argv[2], "launch": "fork"}
with session(**options, **({} if window == 1 else {"accumulate_grad_batches": window})):
    ours = [kind().run(RANKS) for kind in kinds]
plain = [kind().run(1, window) for kind in kinds]
seen = None if window == 1 else -1  # in windows, a loss is each rank's own
apart = {
    kind.__name__: max(abs(a - b) for a, b in zip(one[:seen], other[:seen]))
    for kind, one, other in zip(kinds, plain, ours)
}
print(json.dumps(apart))
