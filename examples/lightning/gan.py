"""Lightning's GAN as a plain loop: two optimizers in turn, and pictures of each epoch.

::

    python examples/lightning/gan.py
    python examples/lightning/gan.py --ranks 2

``self.automatic_optimization = False`` and ``manual_backward`` have no counterpart: a loop is
manual. The images ship inside scikit-learn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset
from torchbus import Session, session

NOISE, PIXELS = 16, 64


def generator() -> nn.Module:
    layers = [nn.Linear(NOISE, 64), nn.LeakyReLU(0.2), nn.Linear(64, PIXELS), nn.Sigmoid()]
    return nn.Sequential(*layers)


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(PIXELS, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def says(judged: torch.Tensor, real: bool) -> torch.Tensor:
    return binary_cross_entropy_with_logits(judged, torch.full_like(judged, float(real)))


def train(s: Session, epochs: int) -> tuple[float, float]:
    images = torch.tensor(load_digits().data[:512] / 16, dtype=torch.float32)
    noise = torch.randn(len(images), NOISE)  # part of the data set, so each rank gets its rows
    loader = DataLoader(TensorDataset(images, noise), batch_size=64, shuffle=True)
    g, d = generator(), discriminator()
    optimizer_g = torch.optim.Adam(g.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for _ in s.epochs(epochs):
        for real, z in loader:
            with s.toggle(optimizer_g):  # self.toggle_optimizer
                g_loss = says(d(g(z)), True)
                optimizer_g.zero_grad()
                g_loss.backward()
                optimizer_g.step()
            with s.toggle(optimizer_d):
                d_loss = (says(d(real), True) + says(d(g(z).detach()), False)) / 2
                optimizer_d.zero_grad()
                d_loss.backward()
                optimizer_d.step()
            s.log_dict({"g_loss": g_loss, "d_loss": d_loss}, prog_bar=True)
        with torch.no_grad():
            s.log_image("made", g(noise[:8]).reshape(-1, 8))
    return g_loss.item(), d_loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("runs/gan"))
    given = parser.parse_args()
    with session(
        devices=given.ranks,
        accelerator="cpu",
        batch="global",
        seed=42,
        logger="local",
        log_dir=given.folder,
        log_every_n_steps=4,
    ) as s:
        g_loss, d_loss = train(s, given.epochs)
        s.print(f"generator {g_loss:.5f}, discriminator {d_loss:.5f}")


if __name__ == "__main__":
    main()
