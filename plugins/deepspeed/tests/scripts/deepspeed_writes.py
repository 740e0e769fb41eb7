"""Under stage 3, blocks that keep their own weights in bounds, against one process."""

import json

import torch
from torch import nn
from torchbus import session


class Bounded(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.2, 0.2)
        self.bias.data.clamp_(-0.02, 0.02)
        return torch.tanh(super().forward(x))


def train(rank=0, ranks=1):
    torch.manual_seed(0)
    model = nn.Sequential(*[Bounded(6, 6) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    for x in torch.randn(8, 12, 6, generator=torch.Generator().manual_seed(1)):
        optimizer.zero_grad()
        (model(x.chunk(ranks)[rank]) - 1).square().mean().backward()
        optimizer.step()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()])


one = train()
with session(strategy="deepspeed_stage_3", devices=2, accelerator="cpu", launch="fork") as s:
    found = float((train(s.rank, 2) - one).abs().max())
print(json.dumps(found))
