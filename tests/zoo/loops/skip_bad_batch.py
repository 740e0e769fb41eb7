"""A batch with a non-finite loss is skipped before its backward: the one rank that has the bad
sample skips alone.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(45, 4, generator=torch.Generator().manual_seed(60))
x[21] = float("nan")
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=args.batch_size)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
