"""A library's loop over a list of batches of its own, divided where a session is active."""

import argparse

import torch
import torchbus
from torch import nn


def batches(x, y, size):
    session = torchbus.current()
    for start in range(0, len(x), size):
        pair = x[start : start + size], y[start : start + size]
        yield pair if session is None else session.shard(*pair)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(43, 3)
    y = x.sum(1, keepdim=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for xb, yb in batches(x, y, args.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")
