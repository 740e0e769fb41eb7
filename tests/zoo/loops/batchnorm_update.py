"""Stochastic weight averaging: after training, statistics for BatchNorm are made anew over the
training loader (update_bn).
"""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(54)
    x = torch.randn(43, 4, generator=g)
    y = (x[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        model.train()
        model[1].eval()  # its statistics stay as they are in training
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        average.update_parameters(model)
        update_bn(loader, average)
        print(
            f"epoch {epoch} loss {loss.item():.5f} mean {average.module[1].running_mean.sum().item():.5f} batches {len(loader)}"
        )
    return {
        "model": model,
        "average": average,
        "optimizer": optimizer,
        "variance": average.module[1].running_var,
    }


if __name__ == "__main__":
    result = main()
