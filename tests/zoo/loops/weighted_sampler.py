"""WeightedRandomSampler over an unbalanced set: indices come more than once by the
user's own wish.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

g = torch.Generator().manual_seed(39)
labels = (torch.rand(60, generator=g) > 0.85).long()
features = torch.randn(60, 4, generator=g) + labels[:, None]
weights = (1.0 / torch.bincount(labels, minlength=2))[labels]
sampler = WeightedRandomSampler(weights, num_samples=45, replacement=True)
loader = DataLoader(TensorDataset(features, labels), batch_size=args.batch_size, sampler=sampler)

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
