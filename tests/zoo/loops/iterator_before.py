"""The iterator is made at the top of the file, before anything that trains runs."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(52, 3, generator=torch.Generator().manual_seed(43))
loader = DataLoader(TensorDataset(x, x.cos()), batch_size=args.batch_size, shuffle=True)
batches = iter(loader)
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def main():
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
