"""Gradients accumulated by hand over two batches, the rest of the epoch stepped at its end."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(24)
    x = torch.randn(68, 5, generator=g)
    y = torch.randn(68, 2, generator=g)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    steps = 0
    for epoch in range(2):
        optimizer.zero_grad()
        for i, (xb, yb) in enumerate(loader):
            loss = nn.functional.mse_loss(model(xb), yb) / args.accumulate
            loss.backward()
            if (i + 1) % args.accumulate == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        print(f"epoch {epoch} step {steps} loss {loss.item() * args.accumulate:.5f}")
    return {"model": model, "optimizer": optimizer, "steps": steps}


if __name__ == "__main__":
    result = main()
