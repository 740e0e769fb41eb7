"""An endless generator over a loader, as GAN and diffusion scripts have it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def sample_data(loader):
    while True:
        yield from loader


def train(args, loader, model, optimizer):
    loader = sample_data(loader)
    for i in range(args.iter):
        x, y = next(loader)
        loss = nn.functional.huber_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 4 == 0:
            print(f"{i:06d} loss: {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--iter", type=int, default=13)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(45, 4, generator=torch.Generator().manual_seed(46))
    loader = DataLoader(
        TensorDataset(x, x.sigmoid()), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(args, loader, model, optimizer)
