"""The best checkpoint by validation is saved on the way and read back after the loop, with the
optimizer's state.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--output", type=Path, default=Path("checkpoints"))
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
args.output.mkdir(exist_ok=True)

g = torch.Generator().manual_seed(32)
x = torch.randn(70, 4, generator=g)
y = torch.where(x[:, 0] * x[:, 1] > 0, 1, 0)
train_loader = DataLoader(TensorDataset(x[:51], y[:51]), batch_size=args.batch_size, shuffle=True)
val_loader = DataLoader(TensorDataset(x[51:], y[51:]), batch_size=args.batch_size)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
best_acc = -1.0

for epoch in range(4):
    model.train()
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = sum((model(a).argmax(1) == b).sum().item() for a, b in val_loader) / len(
            val_loader.dataset
        )
    print(f"epoch {epoch} accuracy {acc:.4f}")
    torch.save(model.state_dict(), args.output / f"epoch{epoch}.pt")
    if acc > best_acc:
        best_acc = acc
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            args.output / "best.pt",
        )

checkpoint = torch.load(args.output / "best.pt")
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
print(f"best accuracy {best_acc:.4f}")
