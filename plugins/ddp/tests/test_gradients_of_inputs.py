"""Gradients of tensors that no optimizer holds are those of one process, or a warning says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "gradients_of_inputs.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_they_are_those_of_one_process(ranks: int) -> None:
    apart = json.loads(fork_script(SCRIPT, ranks).ok().stdout.splitlines()[-1])
    assert len(apart) > 10
    assert {name: value for name, value in apart.items() if not value < 1e-9} == {}


SAID = """
import json
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)


def shared(net, x, state, s):
    delta = state.setdefault("delta", torch.zeros(4, requires_grad=True))
    if s is not None and state["adopts"]:
        s.adopt(delta)
    net(x + delta).square().mean().backward()
    delta.data += delta.grad
    delta.grad = None


def attacked(net, x, state, s):
    near = (x + 0.1).requires_grad_()
    (slope,) = torch.autograd.grad(net(near).square().mean(), near)
    net(near.detach() + slope.sign()).square().mean().backward()


def masked(net, x, state, s):
    # as many positions as samples, by chance
    x.requires_grad_()
    squares = net(x).square()
    some = torch.arange(squares.numel()).reshape(squares.shape) < len(x)
    (slope,) = torch.autograd.grad(squares[some].mean(), x)
    net((x + slope.sign()).detach()).square().mean().backward()


def fast_weights(net, x, state, s):
    fast = net.weight.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.linear(x, fast).square().mean(), fast)
    net(x).square().mean().backward()


def train(step, adopts=False, s=None):
    torch.manual_seed(0)
    net, state = nn.Linear(4, 2), {"adopts": adopts}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(29, 4)), batch_size=8):
        optimizer.zero_grad()
        step(net, x, state, s)
        optimizer.step()
    return state.get("delta", net.weight).detach()


name, adopts = sys.argv[1], "adopts" in sys.argv
alone = train(globals()[name])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with session(strategy="ddp", devices=2, launch="fork", accelerator="cpu", batch="global") as s:
        apart = float((train(globals()[name], adopts, s) - alone).abs().max())
print(json.dumps([apart, [str(one.message)[:60] for one in said]]))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shared"], "which no optimizer holds"),
        (["shared", "adopts"], ""),
        (["attacked"], "torch.autograd.grad communicates nothing"),
        (["masked"], "torch.autograd.grad communicates nothing"),
        (["fast_weights"], ""),
    ],
)
def test_what_is_not_that_of_one_process_is_said_once(words: list[str], said: str) -> None:
    apart, found = json.loads(fork_script(SAID, *words).ok().stdout.splitlines()[-1])
    assert len(found) == bool(said)
    assert not found or said in found[0]
    assert said or apart < 1e-12
