"""A sampler of 1e10 draws, left with `break` after a number of steps: to list it would take all
memory.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--max-steps", type=int, default=9)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(64, 4, generator=torch.Generator().manual_seed(40))
dataset = TensorDataset(x, x.norm(dim=1, keepdim=True))
sampler = RandomSampler(dataset, replacement=True, num_samples=10**10)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step, (inputs, targets) in enumerate(loader):
    if step == args.max_steps:
        break
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
print(f"stopped after {step} steps, loss {loss.item():.5f}")
