"""A loop that trains and evaluates, without code for averages, and its results.

A plain process also runs its lines, with ``torch.optim.swa_utils.AveragedModel`` by hand.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x))))


class Plain(Net):
    """Without BatchNorm, whose statistics depend on how a batch is divided."""

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def data():
    torch.manual_seed(3)
    x = torch.randn(48, 6, dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


def make(kind=Net):
    torch.manual_seed(0)
    model = kind().double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    model, optimizer, loader, after_step=lambda: None, after_epoch=lambda: None, epochs=range(3)
):
    for _ in epochs:
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            after_step()
        model.eval()
        after_epoch()
    return model


def loader(batch_size):
    return DataLoader(data(), batch_size=batch_size)


def tensors(state):
    return {name: value.clone() for name, value in state.items()}
