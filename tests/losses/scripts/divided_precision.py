import ast
import json
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session

warnings.simplefilter("error")
DATA = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
found, OPTIONS = {}, ast.literal_eval(sys.argv[1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = (
            nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(dtype=torch.float32):
    torch.manual_seed(0)
    return Net().to(dtype)


def train(net, batch_size, dtype=None):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for x in DataLoader(DATA, batch_size=batch_size):
        optimizer.zero_grad()
        net(x if dtype is None else x.to(dtype)).double().square().mean().backward()
        optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}


for precision, dtype in (("64-true", torch.float64), ("bf16-true", torch.bfloat16)):
    alone = train(made(dtype), 4, dtype)
    for place in ("in the block", "before it"):
        before = made() if place == "before it" else None
        with session(devices=2, accelerator="cpu", launch="fork", precision=precision, **OPTIONS):
            ours = train(before or made(), 2)
        apart = max(
            float((ours[name].double() - alone[name].double()).abs().max()) for name in alone
        )
        found[f"{precision}, {place}"] = [
            apart,
            all(value.dtype == dtype for value in ours.values()),
        ]
print(json.dumps(found))
