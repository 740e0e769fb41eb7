"""After each epoch the accuracy is measured over the training loader as well."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def check_accuracy(loader, model):
    num_correct, num_samples = 0, 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            num_correct += (model(x).argmax(1) == y).sum().item()
            num_samples += y.size(0)
    model.train()
    return num_correct / num_samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(76, 4, generator=torch.Generator().manual_seed(67))
    y = (x.sum(1) > 0).long()
    train_loader = DataLoader(
        TensorDataset(x[:58], y[:58]), batch_size=args.batch_size, shuffle=True
    )
    test_loader = DataLoader(
        TensorDataset(x[58:], y[58:]), batch_size=args.batch_size, shuffle=True
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for data, targets in train_loader:
            loss = nn.functional.cross_entropy(model(data), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train_accuracy, test_accuracy = (
            check_accuracy(train_loader, model),
            check_accuracy(test_loader, model),
        )
        print(
            f"{epoch}: accuracy on training set: {train_accuracy * 100:.2f}, on test set: {test_accuracy * 100:.2f}"
        )
    return {
        "model": model,
        "optimizer": optimizer,
        "test_accuracy": test_accuracy,
        "train_accuracy": train_accuracy,
    }


if __name__ == "__main__":
    result = main()
