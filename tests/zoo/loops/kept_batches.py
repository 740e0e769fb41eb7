"""Batches are collected in a list before training and used for several epochs, forwards and
backwards; a cycle goes round beside it.
"""

import argparse
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(53)
    x = torch.randn(38, 4, generator=g)
    y = x.sum(1, keepdim=True).sin()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(xb, yb):
        loss = (model(xb) - yb).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    batches = list(DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True))
    for epoch in range(3):
        last = [train(xb, yb) for xb, yb in (batches if epoch != 1 else reversed(batches))][-1]
        print(f"epoch {epoch} loss {last:.5f}")
    del batches

    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size)
    for step, (xb, yb) in enumerate(itertools.islice(itertools.cycle(loader), 2 * len(loader) + 2)):
        print(f"step {step} loss {train(xb, yb):.5f}")

    here, there = itertools.tee(loader)
    next(there)  # one batch ahead: the distance to it is looked at, and not trained on
    for (xb, yb), (following, _) in itertools.zip_longest(here, there, fillvalue=(None, None)):
        last = train(xb, yb)
        if following is not None and following.mean().item() > 9:
            break
    print(f"loss {last:.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
