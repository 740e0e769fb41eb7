"""A gradient penalty on the parameters: backward(create_graph=True) into .grad, then backward
through .grad.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(48, 3, generator=torch.Generator().manual_seed(66))
loader = DataLoader(TensorDataset(x, x.sin()), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward(create_graph=True)
        penalty = sum(p.grad.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        (loss + 0.1 * penalty).backward()
        optimizer.step()
    print(f"epoch {epoch} done")
