"""Loops that compute with parameters and gradients by themselves, against one process."""

import copy
import json
import sys
import warnings

import torch
from tensor_head import PLAN, Block, F, Mlp, differ, numbers, opened, state
from torch.utils.data import DataLoader

ranks, tp = int(sys.argv[1]), int(sys.argv[2])
parts = ranks // tp


class Gated(Block):
    """What a layer hands on whole meets what another has divided."""

    def forward(self, x):
        h = self.up(x)
        return x + self.down(F.gelu(h) * self.down(h).mean(-1, keepdim=True))


def gated():
    model = Mlp()
    for block in model.blocks:
        block.__class__ = Gated
    return model


def no_change(model):
    pass


def penalty(model, loss):
    total = model.blocks[0].up.weight.pow(2).sum()
    total *= 1e-2
    return loss + total


def in_place(model, loss):
    loss += 1e-2 * sum(p.abs().sum() for p in model.parameters())
    return loss


def by_function(model, loss):
    """The loss is a DTensor, since ``torch.sum`` returns one."""
    weight = model.blocks[1].down.weight
    return loss + 1e-2 * torch.sum(weight) + F.mse_loss(weight, torch.ones_like(weight))


def scaled(model):
    total = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
    if total > 0.1:
        for p in model.parameters():
            p.grad.mul_(0.1 / total)


def scaled_by_function(model):
    total = torch.norm(torch.stack([torch.norm(p.grad) for p in model.parameters()]))
    for p in model.parameters():
        p.grad *= 0.1 / total


def train(kind, batch=8):
    torch.manual_seed(0)
    model = gated() if kind == "gated" else Mlp()
    change_loss = {"penalty": penalty, "in place": in_place, "function": by_function}.get(kind)
    change = {"scaled": scaled, "scaled by function": scaled_by_function}.get(kind, no_change)
    early = [p.detach().clone() for p in model.parameters()]
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in DataLoader(numbers(20), batch):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss = change_loss(model, loss) if change_loss else loss
        loss.backward()
        change(model)
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for one, whole, p in zip(early, average.parameters(), model.parameters(), strict=True):
                one.mul_(0.9).add_(p.data, alpha=0.1)
                whole.lerp_(p, 0.1)
    made = state(model) | {f"{i} early": one.clone() for i, one in enumerate(early)}
    made |= {f"{name} average": one for name, one in state(average).items()}
    return made | {"losses": torch.tensor(losses)}


def of_activations(batch=8):
    """Losses by element in the model, of what a layer has divided."""
    torch.manual_seed(0)
    model = Losses()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, _ in DataLoader(numbers(16), batch):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return state(model) | {"losses": torch.tensor(losses)}


class Losses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(5, 12), torch.nn.Linear(12, 12)

    def forward(self, x):
        h = self.up(x)
        other, half = torch.full_like(h, 0.3), torch.full_like(h, 0.5)
        by_element = [F.mse_loss(h, other), F.smooth_l1_loss(h, other), F.huber_loss(h, other)]
        by_element += [F.soft_margin_loss(h, torch.ones_like(h))]
        by_element += [F.binary_cross_entropy(h.sigmoid(), half)]
        return sum(by_element) + self.down(h).square().mean()


found, before = {}, list(warnings.filters)
kinds = ("penalty", "in place", "function", "scaled", "scaled by function", "gated")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for kind in kinds:
        alone = train(kind)
        with opened(ranks, plan=PLAN, tp=tp):
            found[kind] = differ(train(kind, 8 // parts), alone)
    alone = of_activations()
    with opened(ranks, plan={"up": "colwise", "down": "rowwise"}, tp=tp):
        found["losses"] = differ(of_activations(8 // parts), alone)
found["warnings"] = [str(one.message) for one in seen if "DTensor" in str(one.message)]
with opened(ranks, plan=PLAN, tp=tp):
    train("penalty", 8 // parts)
found["filters"] = list(warnings.filters) == before
print(json.dumps(found))
