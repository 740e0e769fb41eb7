"""Which of two heads is trained depends on the batch as a whole."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

g = torch.Generator().manual_seed(23)
x = torch.randn(46, 5, generator=g)
loader = DataLoader(
    TensorDataset(x, x.mean(1, keepdim=True)), batch_size=args.batch_size, shuffle=True
)
trunk, head_a, head_b = nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(6, 1)
optimizer = torch.optim.Adam(
    [*trunk.parameters(), *head_a.parameters(), *head_b.parameters()], lr=1e-2
)
for epoch in range(3):
    for inputs, target in loader:
        hidden = trunk(inputs).tanh()
        prediction = head_a(hidden) if inputs.mean() > 0 else head_b(hidden)
        loss = (prediction - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.5f}")
