"""Diffusion on scikit-learn's handwritten digits, sampled with averaged weights.

::

    python examples/gallery/diffusion.py
"""

from __future__ import annotations

import torch
from pictures import grid
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

STEPS, SIZE, WIDTH = 40, 64, 192
KEPT = torch.cos(torch.linspace(0.02, 1.5, STEPS)) ** 2
"""Of the signal, after each step; the rest is noise."""


class Denoiser(nn.Module):
    """Guesses the clean image, from a noisy one, the step and the digit."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.digit = nn.Embedding(STEPS, WIDTH), nn.Embedding(10, WIDTH)
        self.first, self.last = nn.Linear(SIZE, WIDTH), nn.Linear(WIDTH, SIZE)
        self.hidden = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
            )
            for _ in range(3)
        )

    def forward(self, x: Tensor, step: Tensor, digit: Tensor) -> Tensor:
        hidden = self.first(x) + self.step(step) + self.digit(digit)
        for layer in self.hidden:
            hidden = hidden + layer(hidden)
        guess: Tensor = self.last(hidden)
        return guess


def noised(x: Tensor, noise: Tensor, step: Tensor) -> Tensor:
    kept = KEPT[step].unsqueeze(1)
    return kept.sqrt() * x + (1 - kept).sqrt() * noise


@torch.no_grad()
def sample(model: Denoiser, digits: Tensor) -> Tensor:
    """DDIM without noise: https://arxiv.org/abs/2010.02502"""
    x = torch.randn(len(digits), SIZE)
    for step in reversed(range(STEPS)):
        now = torch.full((len(digits),), step)
        clean = model(x, now, digits).clamp(-1, 1)
        noise = (x - KEPT[step].sqrt() * clean) / (1 - KEPT[step]).sqrt()
        x = noised(clean, noise, now - 1) if step else clean
    return x


def main(epochs: int = 60) -> None:
    torch.manual_seed(0)
    images, digits = map(torch.tensor, load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 8 - 1, digits)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(epochs):
        for x, digit in DataLoader(data, batch_size=64, shuffle=True):
            step, noise = torch.randint(STEPS, (len(x),)), torch.randn_like(x)
            loss = nn.functional.mse_loss(model(noised(x, noise, step), step, digit), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
    model.eval()  # the averages of the weights take their place
    made = sample(model, torch.arange(10).repeat_interleave(6))
    grid((made.view(-1, 8, 8) + 1) / 2, "diffusion.png", columns=6)


if __name__ == "__main__":
    with session(strategy="ddp", devices=2, batch="global", ema_decay=0.99):
        main()
