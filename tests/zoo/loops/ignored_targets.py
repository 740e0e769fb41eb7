"""Labels of -100 do not count, and in some batches none does: a step without a gradient, in which
Adam's averages go on.
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
g = torch.Generator().manual_seed(67)
inputs, labels = torch.randn(60, 5, generator=g), torch.randint(0, 3, (60,), generator=g)
labels[24:48] = -100
labels[50] = labels[56:] = -100
loader = DataLoader(TensorDataset(inputs, labels), args.batch_size)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")
for epoch in range(2):
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        valid = (y != -100).sum().clamp(min=1)
        loss = criterion(model(x), y) / valid
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(f"epoch {epoch} loss {running / len(loader):.6f}")
