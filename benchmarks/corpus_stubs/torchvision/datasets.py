"""Data sets of a few images, the same in every process."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

TRAIN, TEST = 203, 61


class _Images(Dataset[Any]):
    shape: tuple[int, ...] = (28, 28)

    def __init__(self, root: str, train: bool = True, transform: Any = None, **_: Any) -> None:
        count = TRAIN if train else TEST
        generator = torch.Generator().manual_seed(count)
        self.data = torch.randint(256, (count, *self.shape), generator=generator)
        self.targets = torch.randint(10, (count,), generator=generator)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.data[index]
        return (self.transform(image) if self.transform else image), int(self.targets[index])


class MNIST(_Images):
    pass


class CIFAR10(_Images):
    shape = (3, 32, 32)
