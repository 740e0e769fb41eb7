"""Means of two losses where ranks have two samples, trained by one process and by ranks."""

import json
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
RANKS, BATCH = int(sys.argv[1]), int(sys.argv[2])


def two_heads(net, x, y):
    outputs = net(x)
    return (F.cross_entropy(outputs[:, :3], y) + F.cross_entropy(outputs[:, 3:], y)) / 2


def two_passes(net, x, y):
    return (F.cross_entropy(net(x), y) + F.cross_entropy(net(-x), y)) / 2


def discriminator(net, x, y):
    real, false = net(x)[:, :1], net(-x)[:, :1]
    ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
    both = F.binary_cross_entropy_with_logits(real, ones) + F.binary_cross_entropy_with_logits(
        false, zeros
    )
    return both / 2


def one_by_one(net, x, y):
    losses = [F.cross_entropy(net(a[None]), b[None].clamp(0)) for a, b in zip(x, y, strict=True)]
    return sum(losses) / len(losses)


def equal_masks(net, x, y):
    """Each sample has the same number of elements under its mask."""
    mask = torch.zeros(len(x), 6).scatter(1, x.argsort(1)[:, :2], 1.0)
    return ((net(x) - x).square() * mask).sum() / mask.sum()


def teacher(net, x, y):
    of_teacher = x.log_softmax(1)
    return F.kl_div(net(x).log_softmax(1), of_teacher, log_target=True, reduction="batchmean")


def views_in_place(net, x, y):
    outputs = (net(x) * 1).view(-1, 2, 3)
    outputs.neg_()
    outputs[:, 0].sigmoid_()
    return F.cross_entropy(outputs.flatten(1), y)


def train(loss_of):
    torch.manual_seed(0)
    x, y = torch.randn(37, 6), torch.randint(0, 3, (37,))
    y[torch.rand(37) < 0.3] = -100
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=BATCH):
        optimizer.zero_grad()
        loss_of(net, inputs, targets).backward()
        optimizer.step()
    return torch.cat([value.detach().flatten() for value in net.parameters()])


if __name__ == "__main__":
    apart = {}
    for loss_of in (
        two_heads,
        two_passes,
        discriminator,
        one_by_one,
        equal_masks,
        teacher,
        views_in_place,
    ):
        alone = train(loss_of)
        with (
            session(
                devices=RANKS, strategy="ddp", accelerator="cpu", launch="fork", batch="global"
            ),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")
            together = train(loss_of)
        apart[loss_of.__name__] = float((alone - together).abs().max())
    print(json.dumps(apart))
