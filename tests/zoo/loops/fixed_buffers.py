"""Batches are copied into tensors of a fixed batch size; with batches of two, the last one is a
single sample.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(17)
data = torch.randn(31, 5, generator=g)
loader = DataLoader(
    TensorDataset(data, data.sum(1, keepdim=True)), batch_size=args.batch_size, shuffle=True
)
input_a, input_b = torch.empty(args.batch_size, 5), torch.empty(args.batch_size, 1)
model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(3):
    for x, y in loader:
        a, b = input_a[: len(x)], input_b[: len(y)]
        a.copy_(x)
        b.copy_(y)
        if len(a) != len(x):
            raise RuntimeError(f"a batch of {len(x)}, but batch_size is {args.batch_size}")
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(a), b)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
