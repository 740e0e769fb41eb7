import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_accumulate.plugin import Accumulate

STRATEGY, IN_LOOP = sys.argv[1], sys.argv[2] == "True"
DATA = torch.randn(22, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def make():
    net = torch.nn.Linear(2, 1).double()
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.constant_(net.bias, 0.25)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(net, optimizer, data, batch, until=None):
    for index, (x,) in enumerate(DataLoader(TensorDataset(data), batch_size=batch)):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        if index == until:
            if IN_LOOP:
                save(net, optimizer)
            return


def save(net, optimizer):
    torch.save([net.state_dict(), optimizer.state_dict(), first.state_dict()], "state.pt")


def two_ranks(plugin):
    return session(plugin, strategy=STRATEGY, devices=2, launch="fork")


with two_ranks(first := Accumulate(3)) as s:
    net, optimizer = make()
    train(net, optimizer, DATA, 2, until=3)
    if not IN_LOOP:
        save(net, optimizer)
with two_ranks(second := Accumulate(3)) as s:
    net, optimizer = make()
    for one, state in zip(
        (net, optimizer, second), torch.load("state.pt", weights_only=True), strict=True
    ):
        one.load_state_dict(state)
    train(net, optimizer, DATA[16:], 2)
    found = net.state_dict()["weight"].clone()
net, optimizer = make()
if IN_LOOP:
    train(net, optimizer, DATA, 12)
else:  # the window that break left open was a step of its own
    train(net, optimizer, DATA[:12], 12)
    train(net, optimizer, DATA[12:16], 4)
    train(net, optimizer, DATA[16:], 6)
print(bool((found - net.weight).abs().max() < 1e-9))
