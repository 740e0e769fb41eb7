"""Gradients from autograd.grad, assigned to p.grad by the script; backward() is never called."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(52, 4, generator=torch.Generator().manual_seed(64))
loader = DataLoader(
    TensorDataset(x, x.square()), batch_size=args.batch_size, shuffle=True, drop_last=True
)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
params = list(model.parameters())
optimizer = torch.optim.Adam(params, lr=1e-2)
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        for p, g in zip(params, torch.autograd.grad(loss, params)):
            p.grad = g
        optimizer.step()
    print(f"epoch {epoch} done")
