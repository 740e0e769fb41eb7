"""How values that the loop has logged are distributed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchbus.errors import UsageError

MOST_BINS = 512


class Histogram(NamedTuple):
    """Counts of equal bins between the least and the greatest finite value.

    ``counts``: one for each bin; a value on the border of two bins is in the right one.
    ``edges``: one more than counts, ascending. ``sum`` and ``sum_squares`` are those of the values.
    ``not_finite``: how many values are NaN or infinite, which are in no bin.
    """

    counts: list[float]
    edges: list[float]
    sum: float
    sum_squares: float
    not_finite: int


class Values:
    """Values of a histogram, on whatever device they are.

    ``values``: a tensor or an array of real numbers, of any shape. ``bins``: 1 to 512.

    Raises UsageError for other types. The values are not read: nothing waits for a device.
    """

    def __init__(self, name: str, values: object, bins: int) -> None:
        if not isinstance(bins, int) or isinstance(bins, bool) or not 1 <= bins <= MOST_BINS:
            raise UsageError(
                f"s.log_histogram({name!r}, bins={bins!r}): it must be a whole number from 1 to"
                f" {MOST_BINS}"
            )
        self._numbers = _numbers(name, values)
        self._bins = bins
        self._counted: Histogram | None = None

    def counted(self) -> Histogram:
        """Count the values, on their device. Waits for it."""
        if self._counted is None:
            self._counted = _counted(self._numbers, self._bins)
        return self._counted


def _counted(every: Tensor, bins: int) -> Histogram:
    finite = every[every.isfinite()]
    lost = every.numel() - finite.numel()
    if not finite.numel():
        return Histogram([0.0] * bins, [float(edge) for edge in range(bins + 1)], 0.0, 0.0, lost)
    low, high = (float(one) for one in torch.aminmax(finite))
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    counts = torch.histc(finite, bins, low, high).tolist()
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64).tolist()
    total, squares = torch.stack([finite.sum(), finite.square().sum()]).tolist()
    return Histogram(counts, edges, total, squares, lost)


def _numbers(name: str, values: object) -> Tensor:
    """The values in one dimension, as float32, or float64 if they are."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (RuntimeError, TypeError, ValueError):
        tensor = None
    if tensor is None or tensor.is_complex():
        told = f"a {type(values).__name__}" if tensor is None else str(tensor.dtype)
        raise UsageError(
            f"s.log_histogram({name!r}): {told} is no tensor and no array of real numbers"
        )
    flat = tensor.detach().flatten()
    return flat if flat.dtype is torch.float64 else flat.float()
