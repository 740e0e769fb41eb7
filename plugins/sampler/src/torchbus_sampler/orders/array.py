"""A part of an order in memory: the indices, and a checksum at each block's end."""

from __future__ import annotations

import array
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**16  # samples
ITEM_BYTES = 8
Fill = Callable[[Tensor], None]


class OrderArray:
    """``length`` indices, each an int64, and behind them the blocks' checksums, in one buffer of ``words(length)`` numbers. The checksum of
    a block is of everything up to its end."""

    def __init__(self, view: memoryview, length: int) -> None:
        self._view = view
        self.length = length

    def indices(self, start: int, stop: int) -> list[int]:
        return self._view[start:stop].tolist()

    def checksum(self, stop: int) -> int:
        """Of all blocks as far as the one that holds the last of the first ``stop`` indices."""
        return int(self._view[self.length + (stop - 1) // BLOCK])


def words(length: int) -> int:
    """Numbers that an array of so many indices takes."""
    return length + -(-length // BLOCK)


def own(length: int, fill: Fill) -> OrderArray:
    """An array in this process's own memory."""
    view = memoryview(array.array("q", [0]) * words(length))
    write(view, length, fill)
    return OrderArray(view, length)


def write(view: memoryview, length: int, fill: Fill) -> None:
    """Draw the indices, and add up the blocks."""
    if not length:
        return
    fill(torch.frombuffer(view, dtype=torch.int64, count=length))
    checksum = 0
    for number, start in enumerate(range(0, length, BLOCK)):
        checksum = zlib.crc32(view[start : min(start + BLOCK, length)], checksum)
        view[length + number] = checksum


def checksum_of(indices: Any, before: int = 0) -> int:
    """Of numbers that are kept somewhere else: a list or tuple of them, a range, a tensor or an array; read in blocks."""
    if isinstance(indices, range):
        return zlib.crc32(repr(indices).encode(), before)
    for start in range(0, len(indices), BLOCK):
        part = indices[start : start + BLOCK]
        before = digest(part.tolist() if hasattr(part, "tolist") else list(part), before)
    return before


def digest(indices: list[Any], before: int) -> int:
    """A number that is equal on all ranks whose indices have been the same so far."""
    try:
        return zlib.crc32(array.array("q", indices).tobytes(), before)
    except (TypeError, OverflowError):
        return zlib.crc32(repr(indices).encode(), before)
