"""The summary and the FLOPs of one training under a strategy: what a rank holds is no matter."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

options = json.loads(sys.argv[1])
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 4))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


with session(accelerator="cpu", model_summary=2, flops=True, peak_flops=1e12, **options):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
