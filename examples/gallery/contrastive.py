"""Contrastive learning of digits without labels, with the whole batch's negatives on each rank.

::

    python examples/gallery/contrastive.py
"""

from __future__ import annotations

import torch
from pictures import scatter
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session


def views(x: torch.Tensor) -> torch.Tensor:
    """Another look at the same digits: noise, and a hole."""
    return (x + 0.1 * torch.randn_like(x)) * (torch.rand_like(x) > 0.3)


def info_nce(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = nn.functional.normalize(a), nn.functional.normalize(b)
    return nn.functional.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))


def main(epochs: int = 15) -> None:
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32) / 16
    data = TensorDataset(images)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(epochs):
        for (x,) in DataLoader(data, batch_size=128, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            loss = info_nce(model(views(x)), model(views(x)))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.2f}")
    model.eval()
    with torch.no_grad():
        found = nn.functional.normalize(model(images))
    nearest = (found @ found.T).fill_diagonal_(-1).argmax(1)
    labels = torch.tensor(digits)
    print(f"the nearest digit has the same label: {(labels[nearest] == labels).float().mean():.0%}")
    plane = torch.linalg.svd(found - found.mean(0), full_matrices=False)[2][:2]
    scatter((found @ plane.T)[:600], labels[:600].tolist(), "contrastive.png")


if __name__ == "__main__":
    with session(strategy="dp", devices=2):
        main()
