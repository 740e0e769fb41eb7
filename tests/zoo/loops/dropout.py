"""Dropout and input noise; the order of the data has a generator of its own."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(55, 6, generator=torch.Generator().manual_seed(61))
dataset = TensorDataset(x, (x[:, :2].sum(1) > 0).long())
loader = DataLoader(
    dataset, args.batch_size, shuffle=True, generator=torch.Generator().manual_seed(62)
)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        noise = torch.randn_like(inputs)
        loss = nn.functional.cross_entropy(model(inputs + 0.1 * noise), labels)
        loss.backward()
        optimizer.step()
    noise = noise[:2]
    print(f"epoch {epoch} loss {loss.item():.5f}")
