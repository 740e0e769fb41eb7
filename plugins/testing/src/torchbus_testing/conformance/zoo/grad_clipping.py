"""Gradients clipped by norm, and the norm logged; a warm-up scheduler stepped every batch."""

import argparse

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--max-norm", type=float, default=0.1)
args = parser.parse_args()

g = torch.Generator().manual_seed(25)
x = torch.randn(59, 4, generator=g)
loader = DataLoader(
    TensorDataset(x, 3 * x[:, :1]), batch_size=args.batch_size, shuffle=True, drop_last=True
)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))

for epoch in range(3):
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), target)
        loss.backward()
        total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        optimizer.step()
        scheduler.step()
    print(
        f"epoch {epoch} lr {scheduler.get_last_lr()[0]:.3f} norm {total_norm.item():.5f} loss {loss.item():.5f}"
    )
