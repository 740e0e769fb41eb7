"""A model whose slowest layer has no parameters, divided by time."""

import copy
import json
import threading
import time

import torch
from exact_head import nn, pipeline


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.1)
        return x


class Held(nn.Sequential):
    """Can't be copied."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.lock = threading.Lock()


def made(kind=nn.Sequential):
    torch.manual_seed(0)
    model = kind(Slow(), nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Linear(4, 4))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model, optimizer):
    noise = torch.rand(8, 4)
    optimizer.zero_grad()
    model(noise).square().mean().backward()
    optimizer.step()
    return noise


found = {}
for name, kind in {"by time": nn.Sequential, "held": Held}.items():
    with pipeline(2, balance="time") as s:
        model, optimizer = made(kind)
        waits = " ".join(s.explain().split())
        step(model, optimizer)
        found[name] = s.all_gather_object([waits, " ".join(s.explain().split())])
with pipeline(2, balance="time") as s:
    model, optimizer = made(Held)
    step(model, optimizer)
    held = step(model, optimizer)
with pipeline(2, balance="time") as s:
    model, optimizer = made()
    step(model, optimizer)
    found["noise"] = float((step(model, optimizer) - held).abs().max())
for name, line in {
    "copied": lambda model: copy.deepcopy(model),
    "by a layer": lambda model: model[1](torch.ones(8, 4)).mean().backward(),
}.items():
    try:
        with pipeline(2, balance="time"):
            model, optimizer = made()
            line(model)
    except Exception as error:
        found[name] = str(error)
print(json.dumps(found))
