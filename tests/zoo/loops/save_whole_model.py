"""torch.save(model) whole after every epoch, and the last one loaded to go on with."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 4))
        self.history = []

    def forward(self, x):
        return self.net(x)


def train(model, loader):
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
    for (x,) in loader:
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.history.append(loss.item())
    return optimizer


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = torch.rand(42, 4, generator=torch.Generator().manual_seed(34))
loader = DataLoader(TensorDataset(data), batch_size=args.batch_size, shuffle=True)

model = Model()
for epoch in range(3):
    optimizer = train(model, loader)
    torch.save(model, "model.pt")
    model = torch.load("model.pt", weights_only=False)
    print(epoch, type(model).__name__, [round(loss, 5) for loss in model.history])
