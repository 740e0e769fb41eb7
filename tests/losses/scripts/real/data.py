"""Orders, subsets and several loaders."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, Sampler, Subset, TensorDataset

from real.table import loop, mlp, numbers, points, train_step


@loop
def until_it_fits(r):
    """Some steps on a batch, until its loss is small."""
    model = mlp(6, 8, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    for x, y in r.loader(points(r), shuffle=True):
        for _ in range(5):
            loss = F.cross_entropy(model(x), y)
            train_step(r, opt, loss)
            if loss.item() < 1.37:
                break
    return [model]


class ByDifficulty(Sampler):
    """The easy ones first, and more of them in each epoch."""

    def __init__(self, difficulty):
        self.order, self.epoch = difficulty.argsort().tolist(), 0

    def __len__(self):
        return len(self.order) * (self.epoch + 1) // 3

    def __iter__(self):
        kept = self.order[: len(self)]
        mixed = torch.randperm(len(kept), generator=torch.Generator().manual_seed(self.epoch))
        return iter([kept[i] for i in mixed])


@loop
def curriculum(r):
    model, data = mlp(6, 8, 4), points(r)
    sampler = ByDifficulty(data.tensors[0].norm(dim=1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = r.loader(data, sampler=sampler)
    for epoch in range(3):
        sampler.epoch = epoch
        for x, y in loader:
            train_step(r, opt, F.cross_entropy(model(x), y))
    return [model]


@loop
def active_learning(r):
    """What is most uncertain joins the training data after each round."""
    model, data = mlp(6, 8, 4), points(r)
    chosen = list(range(r.size // 3))
    for _ in range(3):
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for x, y in r.loader(Subset(data, chosen), shuffle=True):
            train_step(r, opt, F.cross_entropy(model(x), y))
        rest = sorted(set(range(r.size)) - set(chosen))
        model.eval()
        with torch.no_grad():
            p = torch.cat([model(x).softmax(1) for x, _ in r.loader(Subset(data, rest))])
        sure = (p.log() * p).sum(1)
        chosen = chosen + [rest[i] for i in sure.argsort()[: r.size // 4].tolist()]
    return [model]


@loop
def nested_loaders(r):
    """A pass over held-out data, for parameters of its own, inside the pass over the others."""
    model, temperature = mlp(6, 8, 4), nn.Parameter(torch.ones(()))
    data = points(r)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD([temperature], lr=0.05)
    held = Subset(data, range(r.size // 2))
    for i, (x, y) in enumerate(r.loader(data, shuffle=True)):
        train_step(r, opt, F.cross_entropy(model(x) * temperature.detach(), y))
        if i % 2:
            for a, b in r.loader(held):
                train_step(r, outer, F.cross_entropy(model(a).detach() * temperature, b))
    model.temperature = temperature
    return [model]


@loop
def zipped_cycle(r):
    """Mean teacher: few labelled samples, again and again, beside many others."""
    student = mlp(6, 8, 4)
    teacher = copy.deepcopy(student)
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    data = points(r)
    few = Subset(data, range(4 * r.whole))
    for epoch in range(2):
        labelled = iter(r.loader(few, drop_last=True))
        for x, _ in r.loader(data, drop_last=True):
            try:
                a, y = next(labelled)
            except StopIteration:
                labelled = iter(r.loader(few, drop_last=True))
                a, y = next(labelled)
            with torch.no_grad():
                soft = teacher(x).softmax(1)
            loss = F.cross_entropy(student(a), y)
            loss = loss + (0.5 + epoch) * F.mse_loss(student(x).softmax(1), soft)
            train_step(r, opt, loss)
            with torch.no_grad():
                for t, s in zip(teacher.parameters(), student.parameters()):
                    t.mul_(0.9).add_(s, alpha=0.1)
    return [student, teacher]


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.3 * g


@loop
def domain_adversarial(r):
    features, label, domain = mlp(6, 8, 8), nn.Linear(8, 4), nn.Linear(8, 2)
    opt = torch.optim.SGD(
        [*features.parameters(), *label.parameters(), *domain.parameters()], lr=0.1
    )
    source = r.loader(points(r), shuffle=True, drop_last=True)
    target = r.loader(TensorDataset(numbers(2 * r.size, 6, seed=2)), drop_last=True)
    for (x, y), (t,) in zip(source, target):
        f, g = features(x), features(t)
        loss = F.cross_entropy(label(f), y)
        loss = loss + F.cross_entropy(domain(Reverse.apply(f)), torch.zeros(len(f)).long())
        loss = loss + F.cross_entropy(domain(Reverse.apply(g)), torch.ones(len(g)).long())
        train_step(r, opt, loss)
    return [features, label, domain]


@loop
def buckets(r):
    """Batches of unlike sizes, by a batch sampler of the script's own."""
    model, data = mlp(6, 8, 4), points(r)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = BatchSampler(range(r.size), 6, False)
    batches = [one[: 2 + i % 5] for i, one in enumerate(whole)]
    together = [batches[i : i + r.scale] for i in range(0, len(batches), r.scale)]
    batches = [[index for batch in some for index in batch] for some in together]
    for x, y in r.plain_loader(data, batch_sampler=batches):
        train_step(r, opt, F.cross_entropy(model(x), y))
    return [model]
