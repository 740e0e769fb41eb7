"""Evaluates without no_grad, after and within epochs, and holds the last outputs in variables."""

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
    g = torch.Generator().manual_seed(57)
    x = torch.randn(59, 4, generator=g)
    y = (x[:, 0] > 0).long()
    train_set, test_set = TensorDataset(x[:40], y[:40]), TensorDataset(x[40:], y[40:])
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    correct, losses = [], []
    for epoch in range(3):
        model.train()
        for i, (xb, yb) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            if i == 0:
                model.eval()
                for held_x, held_y in test_loader:
                    held = model(held_x)
                    losses.append(nn.functional.cross_entropy(held, held_y).item())
                model.train()
        model.eval()
        hits, total = 0, 0.0
        for xb, yb in test_loader:
            outputs = model(xb)
            test_loss = nn.functional.cross_entropy(outputs, yb, reduction="sum")
            hits += (outputs.argmax(1) == yb).sum().item()
            total += test_loss.item()
        correct.append(hits)
        losses.append(total / len(test_set))
    return {"model": model, "optimizer": optimizer, "correct": correct, "losses": losses}


if __name__ == "__main__":
    result = main()
