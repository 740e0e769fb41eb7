"""batch_size=None: the sampler's items are whole batches, the data set indexes with a list."""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Table(Dataset):
    def __init__(self, rows):
        g = torch.Generator().manual_seed(49)
        self.x = torch.randn(rows, 3, generator=g)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
table = Table(50)
sampler = BatchSampler(RandomSampler(table), batch_size=args.batch_size, drop_last=False)
loader = DataLoader(table, sampler=sampler, batch_size=None)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.6f}")
