"""Pairs drawn with `random` inside __getitem__; even indices are positive pairs, odd
ones negative.
"""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class PairDataset(Dataset):
    def __init__(self, n=57):
        g = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, 3, (n,), generator=g)
        self.images = torch.randn(n, 6, generator=g) + self.labels[:, None]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        same = index % 2 == 0
        candidates = [
            i for i in range(len(self)) if (self.labels[i] == self.labels[index]).item() is same
        ]
        other = random.choice(candidates)
        return self.images[index], self.images[other], torch.tensor(1.0 if same else 0.0)


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.fc = nn.Linear(4, 1)

    def forward_once(self, x):
        return self.embed(x)

    def forward(self, a, b):
        return self.fc((self.forward_once(a) - self.forward_once(b)).abs()).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    random.seed(0)

    loader = DataLoader(PairDataset(), batch_size=args.batch_size)
    model = SiameseNetwork()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(2):
        for first, second, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(first, second), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
