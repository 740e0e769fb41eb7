import json

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchbus import session

torch.set_default_dtype(torch.float64)
found = {}


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.arange(5.0), persistent=False)
        self.register_buffer("order", torch.arange(5))
        self.gain = nn.Parameter(torch.ones(1))

    def reset_parameters(self):
        self.angles = torch.arange(5.0) / 5
        self.order.copy_(torch.arange(5))
        self.gain.data.uniform_(0.5, 1.0)  # as many people write it

    def forward(self, x):
        return x * self.gain + self.angles[self.order]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 5, padding_idx=3), nn.Linear(5, 7, bias=False)
        self.blocks = nn.Sequential(
            *[nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), Rotary()) for _ in range(2)]
        )
        self.norm = nn.BatchNorm1d(5).eval()
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.embed(x))))


def steps(model, optimizer, mine=slice(None)):
    for x in torch.randint(7, (3, 12), generator=torch.Generator().manual_seed(1)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[mine]), x[mine]).backward()
        optimizer.step()
    return numbers(model)


def numbers(model):
    buffers = [value.reshape(-1) for value in model.buffers()]
    return torch.cat(
        [value.double().reshape(-1) for value in [*model.state_dict().values(), *buffers]]
    )


def made(make=Net, then=lambda model: torch.optim.Adam(model.parameters(), lr=0.1)):
    torch.manual_seed(0)
    with torch.device("meta"):
        model = make()
    return model, then(model)


def alone():
    model, _ = made(then=lambda model: None)
    model.to_empty(device="cpu")
    model.out.weight = model.embed.weight
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model.eval()


def opened(ranks=2, **options):
    return session(
        strategy="fsdp",
        devices=ranks,
        accelerator="cpu",
        launch="fork",
        replace_sampler=False,
        **options,
    )


def part(s):
    each = 12 // s.world_size
    return slice(each * s.rank, each * s.rank + each)


def apart(ours, alone):
    return float((ours - alone).abs().max() / alone.abs().max())
