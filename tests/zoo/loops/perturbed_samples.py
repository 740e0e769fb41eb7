"""Adversarial training: for each batch an optimizer of its own for the perturbation of these very
samples.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def attack(model, x, y, steps=2):
    delta = torch.zeros_like(x).requires_grad_()
    optimizer = torch.optim.SGD([delta], lr=3.0, momentum=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -nn.functional.cross_entropy(model(x + delta), y)
        loss.backward()
        optimizer.step()
    return delta.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(43)
    x = torch.randn(70, 5, generator=g)
    y = (x[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for xb, yb in loader:
            worst = xb + attack(model, xb, yb)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(worst), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
