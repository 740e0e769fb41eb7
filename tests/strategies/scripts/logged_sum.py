"""The sum of the samples' numbers, logged under two pipelines of two ranks: each sample counts once."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_testing.recorder import RecordingLogger

logger = RecordingLogger()
numbers = torch.arange(16.0)[:, None]
with session(
    strategy="pipeline", stages=2, devices=4, accelerator="cpu", launch="fork", logger=logger
) as s:
    model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in DataLoader(TensorDataset(numbers), 4):
        s.log("sum", x.sum(), reduce="sum", on_epoch=True, on_step=False)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
print(json.dumps([float(v) for line in logger.lines for k, v in line[2].items() if k == "sum"]))
