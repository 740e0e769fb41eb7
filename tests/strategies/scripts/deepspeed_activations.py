"""Blocks that compute again in backward, under DeepSpeed, against one process."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.manual_seed(7)
DATA = TensorDataset(torch.randn(21, 6), torch.randn(21, 3))
forwards = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        forwards.append(torch.is_grad_enabled())
        return x + self.down(torch.tanh(self.up(x)))


def train(size):
    torch.manual_seed(1)
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in DataLoader(DATA, size):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return torch.cat([one.reshape(-1) for one in model.state_dict().values()])


alone, found = train(8), {}
for stage in (2, 3):
    forwards.clear()
    with session(
        strategy=f"deepspeed_stage_{stage}",
        devices=2,
        launch="fork",
        accelerator="cpu",
        activation_checkpointing="auto",
    ):
        ours = train(4)
    found[stage] = [float((alone - ours).abs().max() / alone.abs().max()), len(forwards)]
print(json.dumps(found))
