"""Several tensors in one tensor of bytes, behind a head that tells what they are.

A strategy divides, sends and saves bytes as it does any frozen parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNED = 16
HEAD = 16


class Part(NamedTuple):
    """Where one of the tensors is."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        return self.start + prod(self.shape) * self.dtype.itemsize


def layout(tensors: Mapping[str, Tensor]) -> tuple[Part, ...]:
    """Where each tensor will be. All begin at an address at which every dtype may."""
    parts: list[Part] = []
    start = HEAD
    for name, tensor in tensors.items():
        parts.append(Part(name, tensor.dtype, tuple(tensor.shape), start))
        start = -(-parts[-1].end // ALIGNED) * ALIGNED
    return tuple(parts)


def pack(tensors: Mapping[str, Tensor], parts: tuple[Part, ...], head: bytes) -> Tensor:
    first = next(iter(tensors.values()))
    packed = torch.zeros(parts[-1].end, dtype=torch.uint8, device=first.device)
    packed[: len(head)] = torch.tensor(list(head), dtype=torch.uint8, device=first.device)
    for name, place in unpack(packed, parts).items():
        place.copy_(tensors[name])
    return packed


def unpack(packed: Tensor, parts: tuple[Part, ...]) -> dict[str, Tensor]:
    """Views of the tensors."""
    return {
        part.name: packed[part.start : part.end].view(part.dtype).view(part.shape) for part in parts
    }


def head_of(packed: Tensor) -> bytes:
    return bytes(packed[:HEAD].tolist())
