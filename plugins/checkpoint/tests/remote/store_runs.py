"""A run whose checkpoints are in a store, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchbus_checkpoint.remote import store as names
from torchbus_checkpoint.remote.store import Store


def train(s: Any, count: int = 6, at: Callable[[int], None] = lambda step: None) -> float:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for step in s.epochs(count):
        optimizer.zero_grad()
        (weight * torch.rand(3)).sum().backward()
        optimizer.step()
        at(step)
    return weight.sum().item()


def whole(place: str) -> list[str]:
    return [one.name for one in names.there(Store(place)) if one.is_whole]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
