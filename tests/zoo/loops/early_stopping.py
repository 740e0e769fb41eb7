"""Early stopping on the validation loss: ranks that disagreed would leave the loop at different
epochs.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class EarlyStopping:
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best = float("inf")
        self.counter = 0
        self.early_stop = False

    def __call__(self, val_loss):
        if val_loss < self.best - self.min_delta:
            self.best, self.counter = val_loss, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(30)
    x = torch.randn(75, 4, generator=g)
    y = (x[:, 0] + 0.5 * torch.randn(75, generator=g) > 0).double()
    train_set, val_set = random_split(TensorDataset(x, y), [52, 23])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    stopper = EarlyStopping(patience=2, min_delta=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(30):
        model.train()
        for xb, yb in train_loader:
            optimizer.zero_grad()
            criterion(model(xb), yb).backward()
            optimizer.step()
        model.eval()
        val_loss = 0.0
        with torch.no_grad():
            for xb, yb in val_loader:
                val_loss += criterion(model(xb), yb).item() * len(xb)
        val_loss /= len(val_set)
        print(f"epoch {epoch} val_loss {val_loss:.5f}")
        stopper(val_loss)
        if stopper.early_stop:
            print("early stopping at", epoch)
            break
    return {"model": model, "optimizer": optimizer, "val_loss": val_loss, "epoch": epoch}


if __name__ == "__main__":
    result = main()
