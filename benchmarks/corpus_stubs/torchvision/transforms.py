"""Transforms of tensors, with torch's random numbers where they are random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Compose:
    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: Tensor) -> Tensor:
        image = image.to(torch.get_default_dtype()) / 255
        return image if image.dim() == 3 else image[None]


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(one).view(-1, 1, 1) for one in (mean, std))

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


class Resize:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Tensor) -> Tensor:
        whole = image.reshape(1, -1, *image.shape[-2:]).to(torch.get_default_dtype())
        return F.interpolate(whole, (self.size, self.size))[0]


class RandomCrop:
    def __init__(self, size: int, padding: int = 0) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: Tensor) -> Tensor:
        padded = F.pad(image, [self.padding] * 4)
        top, left = torch.randint(2 * self.padding + 1, (2,)).tolist()
        return padded[..., top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __call__(self, image: Tensor) -> Tensor:
        return image.flip(-1) if torch.rand(1) < 0.5 else image
