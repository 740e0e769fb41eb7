"""A loader with two workers."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 47

    def __getitem__(self, i):
        x = torch.tensor([i / 47, (i / 47) ** 2])
        return x, x.sum(dim=0, keepdim=True).sqrt()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(
        Squares(), batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
