"""from_pretrained() returns a model in eval mode, and the loop forgets to call train()."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def from_pretrained():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2)).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(56)
    x = torch.randn(40, 4, generator=g)
    y = (x[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = from_pretrained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, epochs=2, steps_per_epoch=len(loader)
    )
    for epoch in range(2):
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
