"""Batches made by a generator function with torch.randperm; there is no loader."""

import argparse

import torch
from torch import nn


def iterate_minibatches(inputs, targets, batch_size):
    perm = torch.randperm(len(inputs))
    for start in range(0, len(inputs), batch_size):
        idx = perm[start : start + batch_size]
        yield inputs[idx], targets[idx]


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

g = torch.Generator().manual_seed(41)
X, y = torch.randn(55, 4, generator=g), torch.randint(0, 3, (55,), generator=g)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(3):
    for xb, yb in iterate_minibatches(X, y, args.batch_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
