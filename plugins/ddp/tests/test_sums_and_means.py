"""A loss that adds sums over samples to means over samples: each is what it is in one process."""

from __future__ import annotations

from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = """
import json, warnings, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
FISHER, OLD = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(1))
LOSSES = {
    "mean and anchor": lambda net, z, out, a: F.mse_loss(out, a) + (FISHER * (net[0].weight - OLD) ** 2).sum(),
    "mean and distance": lambda net, z, out, a: out.square().mean() + 5 * F.mse_loss(net[0].weight, OLD, reduction="sum"),
    "sum and decay": lambda net, z, out, a: F.mse_loss(out, a, reduction="sum") + sum(p.square().sum() for p in net.parameters()),
    "sum and anchor": lambda net, z, out, a: out.square().sum() + (net[0].weight - OLD).norm() ** 2 + (FISHER * net[0].weight).abs().sum(),
    "sum and orthogonal": lambda net, z, out, a: z.square().sum() + (net[0].weight @ net[0].weight.T - torch.eye(4)).square().sum(),
    "sum and singular values": lambda net, z, out, a: z.square().sum() + torch.linalg.matrix_norm(net[0].weight, "nuc"),
    "sum and variation": lambda net, z, out, a: z.square().sum() + (net[0].weight[1:] - net[0].weight[:-1]).abs().sum(),
    "sum and entropy": lambda net, z, out, a: z.square().sum() - (net[0].weight.softmax(1) * net[0].weight.log_softmax(1)).sum(1).mean(),
    "mean and sum": lambda net, z, out, a: F.mse_loss(out, a) + z.square().sum(),
    "targets and sum": lambda net, z, out, a: F.cross_entropy(out, a.argmax(1)) + 2 * z.abs().sum(1).sum(),
    "two of each": lambda net, z, out, a: out.mean() + F.l1_loss(z, a[:, :4]) - z.sum() - F.mse_loss(out, a, reduction="sum"),
    "sum of weights": lambda net, z, out, a: F.mse_loss(out, a) + (net[0].weight.T @ net[0].weight).square().sum(),
    "sum and costs": lambda net, z, out, a: z.square().sum() + (net[0].weight.softmax(1) * FISHER).sum(),
    "one sample left": lambda net, z, out, a: F.mse_loss(out, a) + (FISHER * (net[0].weight - OLD) ** 2).sum(),
    "all": lambda net, z, out, a: F.mse_loss(out, a) + net[2].weight.abs().sum() + z.square().sum(),
}

def train(name):
    torch.manual_seed(0)
    x = torch.randn(25 if name == "one sample left" else 26, 5)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    shown = []
    for (a,) in DataLoader(TensorDataset(x), batch_size=8):  # a last batch of 2
        z = net[0](a)
        loss = LOSSES[name](net, z, net[2](torch.tanh(z)), a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown.append(loss.item())
    return shown, net[0].weight.flatten().tolist()

found = {"alone": {name: train(name) for name in LOSSES}}
for ranks in (2, 3):
    for name in LOSSES:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with session(devices=ranks, batch="global", launch="fork", accelerator="cpu"):
                result = train(name)
        found[f"{ranks} {name}"] = [*result, [str(one.message) for one in said]]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with session(devices=2, accumulate_grad_batches=2, launch="fork", accelerator="cpu"):
        train("mean and sum")
        train("sum and decay")
found["window"] = [str(one.message) for one in said]
print(json.dumps(found))
"""


def test_each_term_is_what_it_is_in_one_process() -> None:
    found: dict[str, Any] = fork_script(SCRIPT).json()
    for name, (losses, weights) in found["alone"].items():
        for ranks in (2, 3):
            theirs, mine, said = found[f"{ranks} {name}"]
            assert mine == pytest.approx(weights, rel=1e-9), (name, ranks)
            if name == "two of each":  # the graph keeps the values of two terms only
                assert len(said) == 1 and "the loss that the loop shows is not" in said[0]
                continue
            assert theirs == pytest.approx(losses, rel=1e-9), (name, ranks)
            assert not said, (name, said)
    for words in (
        "a term of the loss is a sum over samples",
        "the loss adds a penalty of the param",
    ):
        assert any(words in one for one in found["window"])


OF_ZERO = """
import json, torch
from torch import nn
from torchbus import session

DATA = torch.ones(4, 3)
LOSSES = {
    "a parameter of zero": lambda w, rank: (w[:1] * (rank + 1)).mean(),
    "and one sample": lambda w, rank: (w[:1] * torch.tensor([rank + 1.0])).mean(),
    "a factor of zero": lambda w, rank: w.sum() * 0 if rank else ((w - DATA) ** 2).mean(),
    "a leaf": lambda w, rank: (
        0.5 * torch.zeros(1, requires_grad=True).sum() + (w * 0).sum()
        if rank else ((w - DATA) ** 2).mean()
    ),
}
found = {}
for name, loss in LOSSES.items():
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        loss(weight, s.rank).backward()
        optimizer.step()
    found[name] = weight.tolist()
print(json.dumps(found))
"""


def test_a_loss_of_zero_counts_nothing_only_if_it_has_no_gradient() -> None:
    found = fork_script(OF_ZERO).json()
    alone = pytest.approx([2 / 3] * 3)  # rank 0's loss is the only one
    assert found == {
        "a parameter of zero": [-1.5, 0.0, 0.0],
        "and one sample": [-1.5, 0.0, 0.0],
        "a factor of zero": alone,
        "a leaf": alone,
    }
