"""Handwritten digits: a training loop as anybody writes it.

::

    python examples/digits.py              # one process
    python examples/digits.py --ranks 2    # the same loop on two ranks: see the end of this file

``main`` and everything that it calls never mention torchbus. The images ship inside scikit-learn.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchbus import session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


def train(
    model: nn.Module,
    loader: DataLoader,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
) -> float:
    model.train()
    total = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    correct = 0
    for images, labels in loader:
        predictions = model(images.to(device)).argmax(1)
        correct += int((predictions == labels.to(device)).sum())
    return correct / len(loader.dataset)


def main(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(options.seed)
    torch.set_default_dtype(torch.float64 if options.double else torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    images, labels = load_digits(return_X_y=True)
    dataset = TensorDataset(
        torch.tensor(images / 16).to(torch.get_default_dtype()).view(-1, 1, 8, 8),
        torch.tensor(labels),
    )
    train_set, test_set = random_split(dataset, [1500, len(dataset) - 1500])
    train_loader = DataLoader(train_set, batch_size=options.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=256)

    model = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)

    best = 0.0
    for epoch in range(options.epochs):
        loss = train(model, train_loader, criterion, optimizer, device)
        accuracy = evaluate(model, test_loader, device)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss:.6f}, test accuracy {accuracy:.4f}")
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), options.save)
    print(f"best test accuracy {best:.4f}, saved in {options.save}")
    return model


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a small network on scikit-learn's handwritten digits."
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", default="digits.pt", help="where the best parameters go")
    parser.add_argument(
        "--ranks", type=int, default=1, help="number of processes, on GPUs where there are any"
    )
    return parser


if __name__ == "__main__":
    options = parser().parse_args()
    if options.ranks == 1:
        main(options)
    else:
        with session(strategy="ddp", devices=options.ranks, batch="global", verbose=True):
            main(options)
