"""A sum-reduced loss without noise; the decoder is reached through a method, never
through forward.
"""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, width=10, code=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, code))
        self.decoder = nn.Sequential(nn.Linear(code, 6), nn.Tanh(), nn.Linear(6, width))

    def forward(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)


def main(args):
    torch.manual_seed(0)
    images = torch.rand(51, 10, generator=torch.Generator().manual_seed(4))
    loader = DataLoader(TensorDataset(images), batch_size=args.batch_size, shuffle=True)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(3):
        total = 0.0
        for (x,) in loader:
            optimizer.zero_grad()
            z = model(x)
            loss = (
                nn.functional.mse_loss(model.decode(z), x, reduction="sum") + 0.01 * z.pow(2).sum()
            )
            loss.backward()
            total += loss.item()
            optimizer.step()
        print(f"epoch {epoch}: {total / len(loader.dataset):.5f} per image")
    return {"model": model, "optimizer": optimizer, "total": total}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    result = main(parser.parse_args())
