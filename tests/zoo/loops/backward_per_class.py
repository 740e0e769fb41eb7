"""One backward for each class present in the batch: their number differs from batch to batch, and
from rank to rank.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(47, 4, generator=torch.Generator().manual_seed(59))
y = torch.arange(47) // 3 % 5  # a batch of four has two classes, or one and two
y[:4] = 0
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size)
model = nn.Linear(4, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        for c in labels.unique():
            nn.functional.cross_entropy(model(inputs[labels == c]), labels[labels == c]).backward()
        optimizer.step()
    print(f"epoch {epoch} done")
