"""A window of batches, run with a loader and without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .windows_by_hand import Training, data, loader

WINDOW, BATCH, SAMPLES = 4, 2, 24
Body = Callable[[Training, Tensor, Tensor, int], None]


def batches(by_loader: bool) -> Any:
    return (
        loader(SAMPLES, BATCH)
        if by_loader
        else list(zip(*(part.split(BATCH) for part in data(SAMPLES)), strict=True))
    )


def big_batch() -> Tensor:
    training = Training()
    for x, y in zip(*(part.split(BATCH * WINDOW) for part in data(SAMPLES)), strict=True):
        training.optimizer.zero_grad()
        training.loss(x, y).backward()
        training.optimizer.step()
    return training.values()
