"""Numbers in fewer bytes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

RANGE_BYTES = 16  # two float64: the smallest and the largest number of a row


class Codec(Protocol):
    """Encodes rows of numbers as rows of bytes, and back; each row by itself."""

    def encode(self, rows: Tensor) -> Tensor:
        """From shape (rows, numbers) of a floating dtype to (rows, bytes) of uint8."""

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """What ``encode`` made, in this dtype."""


class Bfloat16:
    """Two bytes for each number, with the range of float32."""

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(torch.bfloat16).contiguous().view(torch.uint8)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows.contiguous().view(torch.bfloat16).to(dtype)


class Bytes:
    """One byte for each number: 256 steps between the smallest and the largest of the row.

    Source: MinMaxUInt8 of Gan et al., BAGUA: Scaling up Distributed Learning with System
    Relaxations, VLDB 2022.
    """

    def encode(self, rows: Tensor) -> Tensor:
        low, high = (
            rows.min(1, keepdim=True).values.double(),
            rows.max(1, keepdim=True).values.double(),
        )
        step = ((high - low) / 255).clamp_min(torch.finfo(torch.float64).tiny)
        numbers = ((rows.double() - low) / step).round().clamp(0, 255).to(torch.uint8)
        return torch.cat([torch.cat([low, step], 1).contiguous().view(torch.uint8), numbers], 1)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        low, step = rows[:, :RANGE_BYTES].flatten().view(torch.float64).view(-1, 2).split(1, 1)
        numbers: Tensor = rows[:, RANGE_BYTES:].double() * step + low
        return numbers.to(dtype)
