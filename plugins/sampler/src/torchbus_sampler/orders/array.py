"""A part of an order in memory: the indices, and a checksum at the end of each block."""

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
    """``length`` indices, each an int64, and after them the checksums of the blocks.

    All are in one buffer of ``words(length)`` numbers. A block's checksum covers all up to its end.
    """

    def __init__(self, view: memoryview, length: int) -> None:
        self._view = view
        self.length = length

    def indices(self, start: int, stop: int) -> list[int]:
        return self._view[start:stop].tolist()

    def checksum(self, stop: int) -> int:
        """Return the checksum of all blocks up to the one with index number ``stop - 1``."""
        return int(self._view[self.length + (stop - 1) // BLOCK])


def words(length: int) -> int:
    """Return how many numbers an array of so many indices has."""
    return length + -(-length // BLOCK)


def own(length: int, fill: Fill) -> OrderArray:
    """Make an array in this process's own memory."""
    view = memoryview(array.array("q", [0]) * words(length))
    write(view, length, fill)
    return OrderArray(view, length)


def write(view: memoryview, length: int, fill: Fill) -> None:
    """Draw the indices, and compute the checksums."""
    if not length:
        return
    fill(torch.frombuffer(view, dtype=torch.int64, count=length))
    checksum = 0
    for number, start in enumerate(range(0, length, BLOCK)):
        checksum = zlib.crc32(view[start : min(start + BLOCK, length)], checksum)
        view[length + number] = checksum


def checksum_of(indices: Any, before: int = 0) -> int:
    """Return the checksum of a list, tuple, range, tensor or array of numbers, read in blocks."""
    if isinstance(indices, range):
        return zlib.crc32(repr(indices).encode(), before)
    for start in range(0, len(indices), BLOCK):
        part = indices[start : start + BLOCK]
        before = digest(part.tolist() if hasattr(part, "tolist") else list(part), before)
    return before


def digest(indices: list[Any], before: int) -> int:
    """Return a number that is equal on all ranks with the same indices so far."""
    try:
        return zlib.crc32(array.array("q", indices).tobytes(), before)
    except (TypeError, OverflowError):
        return zlib.crc32(repr(indices).encode(), before)
