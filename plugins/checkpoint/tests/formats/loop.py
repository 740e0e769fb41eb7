"""Small runs with all that a checkpoint may hold: ``loop.py write|resume|plain whole|window|parts
PATH``. Prints what they end with.

``write`` makes the checkpoint at PATH in the middle of an epoch and stops there, ``resume`` goes on
from it, ``plain`` does neither.
"""

import json
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

WORD, KIND, PATH = sys.argv[1:]
OPTIONS = {
    "whole": {"devices": 1},
    "window": {"devices": 2, "strategy": "ddp", "accumulate_grad_batches": 3},
    "parts": {"devices": 2, "strategy": "fsdp", "sharded_save": True},
}[KIND]


class Mean:
    """A registered object."""

    def __init__(self):
        self.values = []

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


class Scaled(nn.Module):
    """A buffer that is in no state_dict."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        return self.inner(x) / self.calls.sqrt()


def rich(s, data):
    """Two optimizers, a schedule, an average that no optimizer holds, a tensor that no model owns,
    own variables and a generator.
    """
    torch.manual_seed(0)
    random.seed(0)
    encoder, decoder, bias = (
        Scaled(),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3)),
        nn.Parameter(torch.zeros(3)),
    )
    average = torch.optim.swa_utils.AveragedModel(decoder)
    first, second = (
        torch.optim.Adam(encoder.parameters(), lr=0.05),
        torch.optim.SGD([*decoder.parameters(), bias], lr=0.05, momentum=0.9),
    )
    scheduler = torch.optim.lr_scheduler.StepLR(first, 2, 0.5)
    mean, best, history = s.register("mean", Mean()), float("inf"), []
    noise = torch.Generator().manual_seed(5)
    go_on(s)
    for _ in s.epochs(3):
        for (x,) in DataLoader(
            data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1)
        ):
            loss = (
                decoder(encoder(x + 0.1 * torch.randn(x.shape, generator=noise))) + bias - x
            ).square().mean() * (1 + random.random())
            first.zero_grad()
            second.zero_grad()
            loss.backward()
            first.step()
            second.step()
            scheduler.step()
            average.update_parameters(decoder)
            history.append(loss.item())
            best = min(best, loss.item())
            mean.values.append(best)
            stop(s, len(history))
    return [
        *encoder.parameters(),
        *decoder.parameters(),
        bias,
        *average.parameters(),
        torch.tensor([*history, *mean.values]),
    ]


def lean(s, data):
    """One optimizer; the loop says ``range``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    num_batches = 0
    go_on(s)
    for _ in range(3):
        for (x,) in DataLoader(data, batch_size=2, shuffle=True):
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
            num_batches += 1
            stop(s, num_batches)
    return [one.detach() for one in model.state_dict().values()]


def go_on(s):
    if WORD == "resume":
        s.load(PATH)


def stop(s, num_batches):
    if WORD == "write" and num_batches == 8:
        s.save(PATH)
        raise SystemExit


data = TensorDataset(torch.sin(torch.arange(66.0)).reshape(22, 3))
with session("checkpoint", accelerator="cpu", launch="fork", **OPTIONS) as s:
    found = (rich if KIND == "whole" else lean)(s, data)
    print(json.dumps(torch.cat([one.detach().reshape(-1) for one in found]).tolist()))
