"""A detector that overrides train() to keep its frozen batch norm in eval mode."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class FrozenBackboneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def train(self, mode=True):
        super().train(mode)
        if mode:
            self.backbone[1].eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def train_epoch(epoch, model, loader, optimizer):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        print(
            f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(loader.dataset)}]\tLoss: {loss.item():.6f}"
        )


def evaluate(model, loader):
    """As older scripts do it: eval mode, and no no_grad."""
    model.eval()
    correct = 0
    for data, target in loader:
        correct += (model(data).argmax(1) == target).sum().item()
    print(f"Accuracy: {correct}/{len(loader.dataset)}")
    return correct


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(18)
    x, x_test = torch.randn(60, 6, generator=g), torch.randn(19, 6, generator=g)
    train_loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(x_test, (x_test[:, 0] > 0).long()), args.batch_size)
    model = FrozenBackboneNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(2):
        train_epoch(epoch, model, train_loader, optimizer)
        correct = evaluate(model, test_loader)
