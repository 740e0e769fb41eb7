"""A small training, and what cuts it off."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

DATA = TensorDataset(torch.randn(22, 3, generator=torch.Generator().manual_seed(7)))


class Alone:
    """What a loop finds for ``s`` without torchbus."""

    def __getattr__(self, name: str) -> Any:
        return {
            "epochs": range,
            "register": lambda name, thing: thing,
            "log": lambda *values: None,
        }[name]


class Cut(Exception):
    pass


class Clock:
    """Cuts the loop after so many steps. Its count is nothing that a checkpoint holds."""

    def __init__(self, cut: int = -1) -> None:
        self._cut = cut
        self._count = iter(range(1, 10**9))  # unlike a count, a checkpoint does not restore it

    def __call__(self) -> None:
        if next(self._count) == self._cut:
            raise Cut


def make(dropout: float = 0.5) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(dropout), nn.Linear(5, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def seed(number: int = 0) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)
