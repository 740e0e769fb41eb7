"""Batch normalisation with two forwards per step; the ragged end has two samples for all ranks
together.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    with torch.inference_mode():
        correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=6)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(63)
    x, x_test = torch.randn(50, 5, generator=g), torch.randn(22, 5, generator=g)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(x_test, (x_test[:, 0] > 0).long()), args.batch_size)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss = loss + nn.functional.mse_loss(model(inputs.flip(1)), model[0](inputs)[:, :2])
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader)
        print(f"epoch {epoch} accuracy {accuracy:.4f}")
    return {"model": model, "optimizer": optimizer, "accuracy": accuracy}


if __name__ == "__main__":
    result = main()
