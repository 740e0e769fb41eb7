"""Running means, sums and extremes of numbers, and of tensors that stay on their device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchbus_log.metrics.values import Value

FOLD_AT = 64


class Total:
    """All values of one name in one pass, as a few numbers.

    ``reduce`` is "mean" (weighted by samples), "sum", "max" or "min". Tensors are collected, and
    reduced on their device, many at once, in float64.
    """

    def __init__(self, reduce: str) -> None:
        self.reduce = reduce
        self.weight = 0.0
        self._parts: list[Value] = []
        self._waiting: dict[tuple[torch.device, torch.dtype, float], list[Tensor]] = {}
        self._count = 0

    def add(self, value: Value, weight: float) -> None:
        """Add the value of ``weight`` samples. Without samples, it does not count."""
        if weight == 0.0:
            return
        self.weight += weight
        factor = weight if self.reduce == "mean" else 1.0
        if isinstance(value, Tensor):
            self._waiting.setdefault((value.device, value.dtype, factor), []).append(value)
        else:
            self._parts.append(value * factor)
        self._count += 1
        if self._count == FOLD_AT:
            self._parts = self.parts()
            self._waiting.clear()
            self._count = len(self._parts) % FOLD_AT

    def parts(self) -> list[Value]:
        """Return a few numbers, for ``combine``."""
        folded = [
            self._fold(torch.stack(values)) * factor
            for (*_, factor), values in self._waiting.items()
        ]
        numbers = [part for part in self._parts if not isinstance(part, Tensor)]
        tensors = [part for part in self._parts if isinstance(part, Tensor)]
        return [
            *([combine(numbers, self.reduce)] if numbers else []),
            *self._by_device([*tensors, *folded]),
        ]

    def _by_device(self, tensors: list[Tensor]) -> list[Value]:
        alike: dict[torch.device, list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault(tensor.device, []).append(tensor)
        return [self._fold(torch.stack(ones)) for ones in alike.values()]

    def _fold(self, values: Tensor) -> Tensor:
        wide = values.to(torch.float32 if values.device.type == "mps" else torch.float64)
        return (
            wide.max()
            if self.reduce == "max"
            else wide.min()
            if self.reduce == "min"
            else wide.sum()
        )


def combine(numbers: list[float], reduce: str) -> float:
    """Return the maximum, the minimum, or (for "mean" and "sum") the sum. NaN if one is NaN."""
    if reduce in ("max", "min"):
        return (
            math.nan
            if any(map(math.isnan, numbers))
            else {"max": max, "min": min}[reduce](numbers, default=math.nan)
        )
    try:
        return math.fsum(numbers)
    except (ValueError, OverflowError):  # infinities of both signs
        return sum(numbers)
