import contextlib
import itertools
import json
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
found, made = {}, iter(range(10**9))


class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 1)  # more ranks than rows: some have an empty part
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.ones(2), persistent=False)

    def forward(self, x):
        self.seen += 1
        return self.out(x) * self.hidden.prod()


class PowerCut(Exception):
    pass


def train(stop_after=0, s=None):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), 12, shuffle=True)
    body, tail = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5)), Tail()
    often, rarely = (
        torch.optim.AdamW(body.parameters(), lr=0.05),
        torch.optim.SGD(tail.parameters(), lr=0.05, momentum=0.9),
    )
    steps = 0
    for epoch in range(3):
        for x, y in loader:
            often.zero_grad()
            nn.functional.mse_loss(tail(body(x)), y).backward()
            nn.utils.clip_grad_norm_(body.parameters(), 1.0)
            often.step()
            steps += 1
            next(made)
            if steps % 2 == 0:  # what the other steps have left is in the checkpoint
                rarely.step()
                rarely.zero_grad()
            if steps == stop_after:
                raise PowerCut
    values = [*body.state_dict().values(), *tail.state_dict().values()]
    moments = [
        value
        for one in (often, rarely)
        for entry in one.state_dict()["state"].values()
        for value in entry.values()
    ]
    return torch.cat([value.double().reshape(-1) for value in values + moments])


def divided(strategy, ranks, folder, stop_after=0, **options):
    options = {"checkpoint": folder, "every_n_steps": 7, "batch": "global"} | options
    with (
        contextlib.suppress(PowerCut),
        session(
            strategy=strategy,
            devices=ranks,
            accelerator="cpu",
            launch="fork",
            timeout_s=30,
            **options,
        ) as s,
    ):
        return train(stop_after, s)


def apart(ours, alone):
    return float((ours - alone).abs().max() / alone.abs().max())
