"""torch.compile around the model, and the training step left as it is."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(36)
    x = torch.randn(53, 4, generator=g)
    loader = DataLoader(TensorDataset(x, x.cos()), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-2)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(compiled(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
