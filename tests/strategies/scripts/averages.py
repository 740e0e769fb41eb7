"""Trains with averages on some ranks, perhaps in parts, and saves what evaluation saw."""

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

options, epochs, ends_at, path = json.loads(sys.argv[1])
torch.manual_seed(3)
x = torch.randn(48, 6, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
with session(**options) as s:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    seen = []
    for epoch in s.epochs(epochs) if "checkpoint" in options else range(epochs):
        model.train()
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if [epoch, number] == ends_at:
                raise SystemExit(7)
        model.eval()
        with torch.no_grad():
            loss = sum(torch.nn.functional.mse_loss(model(x), y).item() for x, y in loader)
        seen.append(loss)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        if [epoch, "evaluated"] == ends_at:
            raise SystemExit(7)
    model.train()
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    if s.is_main:
        torch.save({"seen": seen, "averaged": state, "trained": trained}, path)
