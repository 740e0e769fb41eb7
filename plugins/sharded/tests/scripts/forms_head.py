import ast
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
RANKS, OPTIONS = int(sys.argv[1]), ast.literal_eval(sys.argv[2])
DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))


class NoForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.heads, self.scale = (
            nn.Linear(4, 5),
            nn.ModuleDict({"one": nn.Linear(5, 2)}),
            nn.Parameter(torch.ones(2)),
        )


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = (
            nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)),
            nn.Linear(4, 2),
        )

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
