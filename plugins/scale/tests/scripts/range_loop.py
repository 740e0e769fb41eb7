"""A model, its optimizer, a loader, and what a loop does with a batch."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def make(lr=0.1, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    return model, optimizer, loader


def step_of(model, optimizer):
    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step
