"""Batches that the script slices from one tensor, through dropout: the losses of equal batches
differ.
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(48)
inputs, targets = torch.randn(40, 5, generator=g), torch.randn(40, 1, generator=g)
model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for start in range(0, len(inputs), args.batch_size):
        batch = slice(start, start + args.batch_size)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    print(f"epoch {epoch}")
