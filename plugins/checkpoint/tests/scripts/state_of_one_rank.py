"""Rank 1 drops a state of its optimizer before the checkpoint."""

import torch
from torch import nn
from torch.optim import Adam
from torchbus import session

with session(devices=2, launch="fork") as s:
    model = nn.Linear(2, 1)
    optimizer = Adam(model.parameters())
    for x in torch.utils.data.DataLoader(torch.ones(4, 2)):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if s.rank:
        optimizer.state.pop(model.bias)
    s.save("checkpoint")
