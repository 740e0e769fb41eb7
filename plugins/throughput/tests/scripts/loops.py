"""Loops that know nothing of torchbus, and count by themselves what they train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 4


@dataclass
class Batch:
    """A batch of a class of the user's."""

    words: Tensor
    target: Tensor


def data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, WIDTH, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def as_dict(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {"words": torch.stack([x for x, _ in rows]), "target": torch.stack([y for _, y in rows])}


def as_tuple(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    return tuple(as_dict(rows).values())


def as_object(rows: list[tuple[Tensor, Tensor]]) -> Batch:
    return Batch(**as_dict(rows))


def loader(samples: int = 22, batch_size: int = 4, collate=as_tuple) -> DataLoader:
    return DataLoader(data(samples), batch_size=batch_size, collate_fn=collate)


def make(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.mse_loss(model(x), y)
