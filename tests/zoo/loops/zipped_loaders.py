"""Labelled and unlabelled loaders of different length zipped: one batch of each makes one loss."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(47)
    labelled = TensorDataset(
        torch.randn(38, 4, generator=g), torch.randint(0, 2, (38,), generator=g)
    )
    unlabelled = TensorDataset(torch.randn(67, 4, generator=g))
    labelled_loader = DataLoader(labelled, args.batch_size, shuffle=True, drop_last=True)
    unlabelled_loader = DataLoader(unlabelled, args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        for (x, y), (u,) in zip(labelled_loader, unlabelled_loader):
            supervised = nn.functional.cross_entropy(model(x), y)
            consistency = (model(u).softmax(1) - model(-u).softmax(1)).square().mean()
            loss = supervised + 0.5 * consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
