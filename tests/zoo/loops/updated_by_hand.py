"""No backward at all: gradients by autograd.grad, subtracted from the weights."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(49)
    loader = DataLoader(
        TensorDataset(torch.randn(24, 3, generator=g), torch.randn(24, 1, generator=g)),
        args.batch_size,
    )
    model = nn.Linear(3, 1)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients):
                    parameter -= 0.1 * gradient
        print(f"epoch {epoch}")
    return {"model": model}


if __name__ == "__main__":
    result = main()
