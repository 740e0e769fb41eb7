"""BEGAN: k weighs two terms of the discriminator's loss, and moves by both of them
after each step.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    data = torch.randn(48, 4) * torch.linspace(0.1, 3, 48)[:, None]
    generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 4)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
    k, gamma, lambda_k = 0.0, 0.75, 0.05
    for epoch in range(2):
        for (x,) in DataLoader(TensorDataset(data), args.batch_size):
            fake = generator(torch.ones_like(x))
            g_optimizer.zero_grad()
            (discriminator(fake) - fake).abs().mean().backward()
            g_optimizer.step()
            fake = fake.detach()
            real_loss = (discriminator(x) - x).abs().mean()
            fake_loss = (discriminator(fake) - fake).abs().mean()
            d_optimizer.zero_grad()
            (real_loss - k * fake_loss).backward()
            d_optimizer.step()
            k = min(max(k + lambda_k * (gamma * real_loss - fake_loss).item(), 0), 1)
        print(f"epoch {epoch}")
