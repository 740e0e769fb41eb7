"""A GAN that learns eight spots on a ring: two models, two optimizers, three backwards a batch.

::

    python examples/gallery/gan.py
"""

from __future__ import annotations

import torch
from pictures import scatter
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

SPOTS, NOISE, WIDTH = 8, 8, 64
judge = nn.functional.binary_cross_entropy_with_logits


def ring(count: int) -> Tensor:
    """Points around the spots, (count, 2)."""
    turn = torch.randint(SPOTS, (count,)) * (2 * torch.pi / SPOTS)
    return torch.stack([turn.cos(), turn.sin()], 1) + 0.05 * torch.randn(count, 2)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, outputs),
    )


def main(epochs: int = 40) -> None:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(ring(4096)), batch_size=128, shuffle=True)
    generator, critic = network(NOISE, 2), network(2, 1)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for _ in range(epochs):
        for (real,) in loader:
            true, false = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(torch.randn(len(real), NOISE))
            optimizer_c.zero_grad()
            judge(critic(real), true).backward()
            judge(critic(fake.detach()), false).backward()
            optimizer_c.step()
            optimizer_g.zero_grad()
            judge(critic(fake), true).backward()
            optimizer_g.step()
    with torch.no_grad():
        made, real = generator(torch.randn(600, NOISE)), ring(600)
    near = torch.cdist(made, real).min(1).values < 0.1
    print(f"{near.float().mean():.0%} of the points that it makes lie near a spot")
    scatter(torch.cat([real, made]), [5] * 600 + [1] * 600, "gan.png")


if __name__ == "__main__":
    with session(strategy="ddp", devices=2, batch="global"):
        main()
