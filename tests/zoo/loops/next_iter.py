"""Training by iterations: next(iter(loader)) draws one batch of a fresh shuffle at every step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--iters", type=int, default=10)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

g = torch.Generator().manual_seed(45)
images = torch.randn(50, 6, generator=g)
labels = torch.randint(0, 4, (50,), generator=g)
loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for it in range(args.iters):
    x, y = next(iter(loader))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if it % 5 == 0:
        print(f"iter {it} loss {loss.item():.5f}")
