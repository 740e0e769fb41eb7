"""What no gradient shows must be the same on all ranks of a divided model, as under ddp: hyperparameters, and the constants of the loss."""

from __future__ import annotations

from typing import Any

import pytest
from torchbus.testing import fork_script

HEAD = """
import json, warnings, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import RanksDiverged
torch.manual_seed(0)
x, y = torch.randn(200, 4), torch.randint(3, (200,))
F = nn.functional

def opened():
    return session(strategy=STRATEGY, devices=2, accelerator="cpu", launch="fork", **OPTIONS)

def told_in(s, loop):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loop()
            told = "ok"
        except RanksDiverged as error:
            told = str(error)
    both = s.all_gather_object(told)
    assert both[0] == both[1], both
    return [told, [str(one.message) for one in caught]]

def train(s, make, loss_of=F.cross_entropy, change=lambda optimizer, step: None):
    model, optimizer = make(s)
    for step, (xb, yb) in enumerate(DataLoader(TensorDataset(x, y), 4)):
        optimizer.zero_grad()
        loss_of(model(xb), yb).backward()
        change(optimizer, step)
        optimizer.step()

def optimized(model, kind=torch.optim.SGD, **options):
    return model, kind(model.parameters(), **({"lr": 0.1} | options))

def plain(s):
    return optimized(nn.Linear(4, 3))

def other(s, one, two):
    return two if s.is_main else one
"""
STRATEGIES = {
    "fsdp": HEAD.replace("STRATEGY", '"fsdp"').replace("OPTIONS", "{}"),
    "ddp_sharded": HEAD.replace("STRATEGY", '"ddp_sharded"').replace("OPTIONS", "{}"),
    "ddp_sharded, gradients too": HEAD.replace("STRATEGY", '"ddp_sharded"').replace("OPTIONS", '{"shard_gradients": True}'),
}
CASES = """
def loose(s):
    model, offset = nn.Linear(4, 3), torch.zeros(3, requires_grad=True)
    return model, torch.optim.SGD([offset], lr=other(s, 0.1, 0.2))

made = {
    "lr": lambda s: optimized(nn.Linear(4, 3), lr=other(s, 0.1, 0.2)),
    "class": lambda s: optimized(nn.Linear(4, 3), other(s, torch.optim.SGD, torch.optim.Adagrad)),
    "dropout": lambda s: optimized(nn.Sequential(nn.Linear(4, 3), nn.Dropout(other(s, 0.1, 0.5)))),
    "size": lambda s: optimized(nn.Linear(4, 3, bias=s.is_main)),
    "loose": loose,
}
with opened() as s:
    found = {name: told_in(s, lambda: make(s)) for name, make in made.items()}

state = {"k": 0.0}

def began(s, out, target):
    one, two = F.cross_entropy(out, target), out.square().mean()
    loss = one - state["k"] * two
    state["k"] += 0.1 * (one - two).item()
    return loss

def tokens(s, out, target):
    counted = target != 0
    return F.cross_entropy(out, target, reduction="none")[counted].sum() / max(counted.sum().item(), 1)

def doubled(s, optimizer, step):
    optimizer.param_groups[0]["lr"] *= 2 if step == 3 and s.is_main else 1

def dropping(s):
    return optimized(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), torch.optim.Adam)

loops = {
    "alike": lambda s: train(s, dropping, lambda *both: tokens(s, *both)),
    "changed": lambda s: train(s, plain, change=lambda *both: doubled(s, *both)),
    "factor": lambda s: train(s, plain, lambda out, target: F.cross_entropy(out, target) + other(s, 0.3, 0.4) * out.square().mean()),
    "began": lambda s: train(s, plain, lambda *both: began(s, *both)),
}
for name, loop in loops.items():
    with opened() as s:
        found[name] = told_in(s, lambda: loop(s))
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["fsdp", *[pytest.param(name, marks=pytest.mark.slow) for name in list(STRATEGIES)[1:]]])
def found(request) -> tuple[str, dict[str, Any]]:
    return request.param, fork_script(STRATEGIES[request.param] + CASES, timeout_s=115).json()


def test_unlike_hyperparameters_are_named_with_their_value_on_each_rank(found) -> None:
    strategy, cases = found
    told = {name: text for name, (text, _) in cases.items()}
    assert cases["alike"] == ["ok", []]
    for name in ("lr", "loose"):
        assert "SGD, group 0: lr: 0.2 on rank 0, 0.1 on rank 1" in told[name], told[name]
    assert "optimizer: Adagrad on rank 0, SGD on rank 1" in told["class"]
    assert "Dropout(p=0.5, inplace=False) on rank 0, (1): Dropout(p=0.1, inplace=False) on rank 1" in told["dropout"], told["dropout"]
    assert "lr: 0.2 on rank 0, 0.1 on rank 1" in told["changed"], told["changed"]
    sizes = "SGD (1 tensors) where rank 0 comes with the parameters of SGD (2 tensors)" if strategy == "ddp_sharded" else "bias=True) on rank 0, Lin"
    assert sizes in told["size"], told["size"]


def test_unlike_constants_of_the_loss_are_named_with_their_value_on_each_rank(found) -> None:
    _, cases = found
    told, warned = cases["began"]
    assert told == "ok" and len(warned) == 1 and "a factor of the loss is not the same on all ranks" in warned[0]
    words = "the ranks do not train with the same loss: 0.4 on rank 0, 0.3 on rank 1"
    assert words in cases["factor"][0], cases["factor"]
