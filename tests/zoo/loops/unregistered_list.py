"""Layers kept in a plain Python list: the module does not register them, the optimizer is given
them by hand.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = [nn.Linear(i, o) for i, o in zip(sizes[:-1], sizes[1:])]
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.scale * self.layers[-1](x)

    def all_parameters(self):
        return [self.scale] + [p for layer in self.layers for p in layer.parameters()]


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

g = torch.Generator().manual_seed(19)
x = torch.randn(45, 4, generator=g)
loader = DataLoader(TensorDataset(x, x.square()), batch_size=args.batch_size, shuffle=True)
net = Net([4, 7, 4])
optimizer = torch.optim.Adagrad(net.all_parameters(), lr=0.05)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = (net(a) - b).abs().mean()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "L1", round(loss.item(), 5))
