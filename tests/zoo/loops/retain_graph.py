"""A loss that is used twice: backward with retain_graph, then again as a part of another loss."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(52, 4, generator=torch.Generator().manual_seed(56))
loader = DataLoader(TensorDataset(x, x.tanh()), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        output = model(inputs)
        loss = nn.functional.mse_loss(output, targets)
        loss.backward(retain_graph=True)
        total = 0.3 * loss + 0.01 * output.abs().mean()
        total.backward()
        optimizer.step()
    print(f"epoch {epoch}, total {total.item():.5f}")
