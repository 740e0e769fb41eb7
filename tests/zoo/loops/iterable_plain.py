"""An IterableDataset that knows nothing of workers or ranks."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        generator = torch.Generator().manual_seed(37)
        for _ in range(self.n):
            x = torch.randn(4, generator=generator)
            yield x, x.sum().sin()


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

loader = DataLoader(Stream(45), batch_size=args.batch_size)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
