"""A batch size that is meant: each batch is divided over the ranks (batch="global"), a ragged one
of three too.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(50)
    dataset = TensorDataset(
        torch.randn(43, 6, generator=g), torch.randint(0, 3, (43,), generator=g)
    )
    loader = DataLoader(dataset, args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print(f"{len(loader)} batches")
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
