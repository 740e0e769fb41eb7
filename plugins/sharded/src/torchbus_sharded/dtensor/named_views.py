"""Views with a name: ``weight.data.select(0, 1)``, ``.split(2)`` or ``for row in weight.data``.

Each is an index into the tensor, so that what is written into it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_sharded.dtensor.row_views import get_item


def select(tensor: DTensor, dim: int, index: int) -> Tensor:
    return _at(tensor, dim, index)


def narrow(tensor: DTensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    first = int(start) % tensor.shape[dim] if int(start) < 0 else int(start)
    return _at(tensor, dim, slice(first, first + length))


def unbind(tensor: DTensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(_at(tensor, dim, index) for index in range(tensor.shape[dim]))


def rows(tensor: DTensor) -> Iterator[Tensor]:
    if tensor.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(unbind(tensor))


def split(tensor: DTensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(tensor, _shape_of(tensor).split(split_size, dim), dim)


def chunk(tensor: DTensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(tensor, _shape_of(tensor).chunk(chunks, dim), dim)


def _shape_of(tensor: DTensor) -> Tensor:
    return torch.empty(tensor.shape, device="meta")


def _pieces(tensor: DTensor, like: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
    found, start = [], 0
    for piece in like:
        found.append(narrow(tensor, dim, start, piece.shape[dim]))
        start += piece.shape[dim]
    return tuple(found)


def _at(tensor: DTensor, dim: int, what: int | slice) -> Tensor:
    return get_item(tensor, (slice(None),) * (dim % tensor.dim()) + (what,))
