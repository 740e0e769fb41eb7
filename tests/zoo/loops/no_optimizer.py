"""Gradient descent by hand: no optimizer, parameters moved through .data."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
batch_size, lr = int(sys.argv[2]), 0.05

g = torch.Generator().manual_seed(8)
inputs = torch.randn(49, 4, generator=g)
targets = inputs @ torch.randn(4, 2, generator=g)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True)

model = nn.Linear(4, 2)
for epoch in range(3):
    for x, y in loader:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-lr)
    print(f"{epoch}: {loss.item():.6f}")
