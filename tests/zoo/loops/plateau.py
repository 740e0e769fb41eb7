"""ReduceLROnPlateau fed with the training loss itself."""

import argparse

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(28)
    x, noise = torch.randn(63, 3, generator=g), torch.randn(63, 1, generator=g)
    loader = DataLoader(
        TensorDataset(x, x.sum(1, keepdim=True) + noise), batch_size=args.batch_size, shuffle=True
    )
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.05)
    for epoch in range(6):
        epoch_loss = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        scheduler.step(epoch_loss / len(loader))
        print(
            f"epoch {epoch} lr {optimizer.param_groups[0]['lr']:g} loss {epoch_loss / len(loader):.5f}"
        )
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


if __name__ == "__main__":
    result = main()
