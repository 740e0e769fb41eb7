"""Models and loops of other forms than ``model(x)``, divided, against one process that knows nothing of it."""

from __future__ import annotations

from typing import Any

import pytest
from torchbus.testing import fork_script

SCRIPT = """
import json, torch, warnings
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import Unsupported
warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))

class NoForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.heads, self.scale = nn.Linear(4, 5), nn.ModuleDict({"one": nn.Linear(5, 2)}), nn.Parameter(torch.ones(2))

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)), nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def in_dict():
    net = nn.ModuleDict({"a": nn.Linear(4, 5), "b": nn.Linear(5, 2)})
    return net, lambda x: net["b"](torch.tanh(net["a"](x)))

def in_list():
    net = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 2)])
    return net, lambda x: net[1](torch.tanh(net[0](x)))

def without_forward():
    net = NoForward()
    return net, lambda x: net.heads["one"](torch.tanh(net.encoder(x))) * net.scale

def parameters_alone():
    net = nn.ParameterList([torch.randn(4, 2), torch.zeros(2)])
    return net, lambda x: x @ net[0] + net[1]

def called():
    net = Blocks()
    return net, net

def wrapped():  # a shell around a divided model
    net = Blocks()
    return net, lambda x: nn.Sequential(net, nn.Tanh())(x)

def train(make, batch_size, after=lambda net: None, before=lambda net: None):
    torch.manual_seed(0)
    net, call = make()
    before(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    replaced = after(net)
    call = call if replaced is None else replaced
    for x in DataLoader(DATA, batch_size=batch_size):
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
    net.load_state_dict(net.state_dict())
    return {name: value.clone() for name, value in net.state_dict().items()}

def apart(ours, alone):
    assert list(ours) == list(alone) and all(type(value) is torch.Tensor for value in ours.values())
    return max(float((value - alone[name]).abs().max()) for name, value in ours.items())

def check(name, *args):
    alone = train(*args[:1], 6, *args[1:])
    with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork", **OPTIONS):
        ours = train(*args[:1], 6 // RANKS, *args[1:])
    found[name] = apart(ours, alone)

found = {}
"""
FORMS = SCRIPT + """
for make in (in_dict, in_list, without_forward, parameters_alone, wrapped):
    check(make.__name__, make)
print(json.dumps(found))
"""
COMPILED = SCRIPT + """
check("after the optimizer", called, lambda net: torch.compile(net, backend="eager"))
check("in place", called, lambda net: net.compile(backend="eager"))

def train_shell(batch_size):
    torch.manual_seed(0)
    net = Blocks()
    shell = torch.compile(net, backend="eager")
    optimizer = torch.optim.Adam(shell.parameters(), lr=0.1)
    for x in DataLoader(DATA, batch_size=batch_size):
        optimizer.zero_grad()
        shell(x).square().mean().backward()
        optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}
alone = train_shell(6)
with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork"):
    ours = train_shell(6 // RANKS)
found["before the optimizer"] = apart(ours, alone)
print(json.dumps(found))
"""
HOOKED = SCRIPT + """
def mask(net):
    net.head.weight.register_hook(lambda gradient: gradient * torch.tensor([[1.0], [0.0]]))

def twice(net):
    net.head.weight.register_hook(lambda gradient: None)
    net.head.weight.register_hook(lambda gradient: gradient * 2)
    net.head.weight.register_hook(lambda gradient: gradient.sign() * 0)

def removed(net):
    net.head.weight.register_hook(lambda gradient: gradient * 0).remove()

for hook in (mask, twice, removed):
    check(f"{hook.__name__}, before the optimizer", called, lambda net: None, hook)
    check(f"{hook.__name__}, after it", called, hook)

handles = []
def until_now(net):
    def hook(gradient):
        handles.append(1)
        handle.remove()
    handle = net.head.weight.register_hook(hook)
check("removed by itself", called, lambda net: None, until_now)
found["calls of one that is removed"] = len(handles)

for when in ("before", "after"):
    try:
        with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork"):
            hook = lambda net: net.head.weight.register_post_accumulate_grad_hook(print) and None
            train(called, 3, **{when: hook})
    except Unsupported as error:
        found[f"accumulated, {when}"] = str(error)

net = Blocks()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with session(strategy="fsdp", devices=RANKS, accelerator="cpu", launch="fork"):
    net.head.weight.register_hook(lambda gradient: handles.append("after the block"))
    net(DATA).mean().backward()
    handles.clear()
net(DATA).mean().backward()
found["after the block"] = handles
print(json.dumps(found))
"""


def facts(script: str, ranks: int, options: str = "{}") -> dict[str, Any]:
    return dict(fork_script(f"RANKS, OPTIONS = {ranks}, {options}\n" + script, timeout_s=115).json())


@pytest.mark.parametrize(("ranks", "options"), [(2, "{}"), pytest.param(3, "{'reshard_after_forward': True}", marks=pytest.mark.slow)])
def test_models_without_forward(ranks, options):
    """What has no forward is divided in the parts that have one, and parameters that no such part has are whole."""
    found = facts(FORMS, ranks, options)
    assert len(found) == 5 and all(difference < 1e-12 for difference in found.values()), found


def test_compiled_models():
    """In every order, nanoGPT's too; the state of the model inside is whole."""
    found = facts(COMPILED, 2)
    assert len(found) == 3 and all(difference < 1e-12 for difference in found.values()), found


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_hooks_of_parameters(ranks):
    """They see, and may change, the gradient of the rank's samples."""
    found = facts(HOOKED, ranks)
    assert found.pop("calls of one that is removed") == 2, "one in each run"
    assert found.pop("after the block") == ["after the block"]
    for when in ("before", "after"):
        assert "register_post_accumulate_grad_hook of a parameter under strategy='fsdp'" in found.pop(f"accumulated, {when}")
    assert len(found) == 7 and all(difference < 1e-12 for difference in found.values()), found
