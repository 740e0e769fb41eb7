"""Running means, sums and extremes of numbers, and of tensors that stay on their device."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Module
from torchbus.plugin import UsageError, an

FOLD_AT = 64


class Total:
    """All values of one name in one pass, as a few numbers.

    ``reduce`` is "mean" (weighted by samples), "sum", "max" or "min". Tensors are collected, and
    reduced together on their device, in float64 (on MPS in float32).
    """

    def __init__(self, reduce: str) -> None:
        self.reduce = reduce
        self.weight = 0.0
        self._parts: list[Value] = []
        self._waiting: dict[tuple[torch.device, torch.dtype, float], list[Tensor]] = {}
        self._count = 0

    def add(self, value: Value, weight: float) -> None:
        """Add the value of ``weight`` samples. A value with weight 0 is ignored."""
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

    def put(self, parts: Sequence[float], weight: float) -> None:
        """Add the ``parts()`` and the ``weight`` of another total."""
        self._parts += parts
        self._count += len(parts)
        self.weight += weight

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


Value: TypeAlias = float | Tensor
"""A number, or a 0-dim tensor on a device."""


@runtime_checkable
class Metric(Protocol):
    """A metric object that reduces over ranks itself, such as those of torchmetrics."""

    def update(self, *args: object, **kwargs: object) -> None: ...

    def compute(self) -> object: ...

    def reset(self) -> None: ...


def copied(metric: Metric) -> Metric:
    """Return a copy whose tensors have no graph, as ``copy.deepcopy`` refuses a tensor that has."""
    memo: dict[int, object] = {}
    for one in metric.modules() if isinstance(metric, Module) else [metric]:
        for value in getattr(one, "__dict__", {}).values():
            for state in value if isinstance(value, list) else [value]:
                if isinstance(state, Tensor) and state.grad_fn is not None:
                    memo[id(state)] = state.detach().clone()
    return copy.deepcopy(metric, memo)


def updates(metric: Metric) -> object:
    """Return how often a metric object was updated since its reset; None if it is unknown."""
    return getattr(metric, "update_count", None)


def check_name(name: object, verb: str = "log") -> str:
    """Return a metric's name. Raises UsageError if it is not a string, or empty."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"s.{verb}({name!r}, ...): the name must be a string")
    return name


def check_step(step: object, verb: str = "log") -> None:
    """Raise UsageError unless the step is a whole number from 0, or None."""
    if step is not None and not (isinstance(step, Integral) and int(step) >= 0):
        raise UsageError(f"s.{verb}(..., step={step!r}): it must be a number of optimizer steps")


def to_value(name: str, value: Any) -> Value:
    """Return a number as a float, and a tensor with one element on the CPU as a float, too.

    A tensor on another device is cloned on that device as a 0-dim tensor, because reading it would
    block, and because the loop may change it in place. Raises UsageError, which names the metric.
    """
    try:
        # reading a CPU tensor does not block, and takes a tenth of the time of a copy
        if type(value) is Tensor and value.is_cpu:
            number: Any = value.tolist()
            return number if type(number) is float else float(_only_element(name, value).item())
        if isinstance(value, Tensor):
            return _only_element(name, value).detach().clone()
        return float(value)
    except UsageError:
        raise
    except OverflowError:
        raise UsageError(
            f"s.log({name!r}, ...): the number is too large for a float. Log its logarithm:"
            f" s.log({name!r}, math.log(value))"
        ) from None
    except (TypeError, ValueError, RuntimeError):
        what = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise UsageError(
            f"s.log({name!r}, {value!r}): {an(what)} is not a number. Pass a number, or a tensor of"
            " one element"
        ) from None


def _only_element(name: str, value: Tensor) -> Tensor:
    if value.numel() != 1:
        raise UsageError(
            f"s.log({name!r}, ...): a tensor of shape {tuple(value.shape)} is not one number: take"
            " its mean, for example"
        )
    if value.is_meta:
        raise UsageError(
            f"s.log({name!r}, ...): a tensor on the meta device has no value. Log one on s.device"
        )
    return value.reshape(())


def to_host(values: Iterable[Value]) -> list[float]:
    """Return plain numbers in the same order, with one copy for each device and dtype."""
    found: list[float] = []
    alike: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            indices, tensors = alike.setdefault((value.device, value.dtype), ([], []))
            indices.append(index)
            tensors.append(value)
            found.append(0.0)  # replaced below
        else:
            found.append(value)
    for indices, tensors in alike.values():
        for index, number in zip(indices, torch.stack(tensors).tolist(), strict=True):
            found[index] = float(number)
    return found
