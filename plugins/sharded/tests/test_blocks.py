"""Blocks one after another in one process: what a divided model is afterwards, and what a block that fails leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from torchbus.testing import fork_script, run_script

AFTER = """
import copy, io, json, pickle, torch
from torch import nn
from torchbus import session
found = {}

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()

def run(strategy, net, optimizer):
    with session(strategy=strategy, devices=2, accelerator="cpu", launch="fork"):
        for _ in range(3):
            step(net, optimizer)

torch.manual_seed(0)
net = Net()
called = []
net[0].register_load_state_dict_post_hook(lambda module, keys: called.append("loaded"))
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
alone = copy.deepcopy(net)
lone = torch.optim.Adam(alone.parameters(), lr=0.1)

def same():
    return all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True))

run("fsdp", net, optimizer)
for _ in range(3):
    step(alone, lone)
found["trained"] = same()
kinds = [name for name in vars(net[0]) if name.endswith("hooks")]
found["left"] = {f"{index}.{name}": len(getattr(part, name)) for index, part in enumerate(net) for name in kinds if getattr(part, name)}
found["loaded"] = [str(net.load_state_dict(copy.deepcopy(net.state_dict()), assign=assign)) for assign in (False, True)]
found["called"] = called
net[0]._load_state_dict_post_hooks.clear()
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
torch.save(net, io.BytesIO())
found["pickled"] = type(pickle.loads(pickle.dumps(net))[0].weight).__name__
run("fsdp", copy.deepcopy(net), optimizer)
lone = torch.optim.Adam(alone.parameters(), lr=0.1)
run("fsdp", net, optimizer)
run("ddp", net, optimizer)
for _ in range(6):
    step(alone, lone)
found["again"] = same()
print(json.dumps(found))
"""
FAILS = """
import torch
from torchbus import session

def block(strategy, width):
    with session(strategy=strategy, devices=2, accelerator="cpu", launch="fork"):
        net = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(2, width)).mean().backward()
        optimizer.step()
    print(strategy, "done")

for strategy, width in [("fsdp", 5), ("ddp", 4), ("fsdp", 4), ("fsdp", 5), ("fsdp", 4)]:
    try:
        block(strategy, width)
    except RuntimeError as error:
        print("failed:", "cannot be multiplied" in str(error))
"""
SPAWNED = """
import torch
from torchbus import session

@session(strategy="fsdp", launch="spawn", devices=2, accelerator="cpu")
def train(net, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return net.state_dict()["weight"].clone()

def make(seed):
    torch.manual_seed(seed)
    net = torch.nn.Linear(4, 2)
    return net, torch.optim.Adam(net.parameters(), lr=0.1)

if __name__ == "__main__":
    other, its_optimizer = make(1)
    net, optimizer = make(0)
    before = other.weight.detach().clone()
    alone, lone = make(0)
    for _ in range(6):
        lone.zero_grad()
        alone(torch.ones(2, 4)).square().mean().backward()
        lone.step()
    train(net, optimizer)
    print(torch.allclose(train(net, optimizer), alone.weight, atol=1e-6), torch.equal(other.weight, before), type(other.weight).__name__)
"""


@pytest.fixture(scope="module")
def after() -> dict[str, Any]:
    return dict(fork_script(AFTER, timeout_s=115).json())


def test_a_model_is_what_it_was(after):
    """It may be loaded, pickled and divided again; of hooks it has its own alone."""
    assert after["trained"] and after["again"]
    assert after["left"] == {"0._load_state_dict_post_hooks": 1} and after["called"] == ["loaded", "loaded"]
    assert after["loaded"] == ["<All keys matched successfully>"] * 2 and after["pickled"] == "Parameter"


def test_a_block_that_fails_does_not_keep_the_next_from_beginning():
    result = fork_script(FAILS, timeout_s=115)
    assert result.ok() and result.stdout.splitlines() == ["failed: True", "ddp done", "fsdp done", "failed: True", "fsdp done"]


@pytest.mark.slow
def test_a_function_that_new_processes_call_divides_what_it_was_given():
    """Twice, while the caller has another model of the same form."""
    assert run_script(SPAWNED, timeout_s=115).stdout == "True True Parameter\n"
