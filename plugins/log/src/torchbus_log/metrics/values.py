"""The values that users log: checked, and left on their device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from torchbus.plugin import UsageError

Value: TypeAlias = float | Tensor
"""A number, or a 0-dim tensor on a device."""


@runtime_checkable
class Metric(Protocol):
    """An object that computes a metric by itself, also over ranks, as those of torchmetrics."""

    def update(self, *args: object, **kwargs: object) -> None: ...

    def compute(self) -> object: ...

    def reset(self) -> None: ...


def check_name(name: object, verb: str = "log") -> str:
    """Return a metric's name. Raises UsageError if it is no string, or empty."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"s.{verb}({name!r}, ...): the name must be a string")
    return name


def kept(name: str, value: Any) -> Value:
    """Return the value of a number, or of a tensor with one element in the host's memory.

    A tensor on a device is copied there: to read it would take long, and the loop may change it in
    place. Raises UsageError, which names the metric.
    """
    try:
        # to read it blocks nothing, and takes a tenth of the time of a copy
        if type(value) is Tensor and value.is_cpu:
            number: Any = value.tolist()
            return number if type(number) is float else float(_only_element(name, value).item())
        if isinstance(value, Tensor):
            return _only_element(name, value).detach().clone()
        return float(value)
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError):
        what = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise UsageError(f"s.log({name!r}, {value!r}): a {what} is not a number") from None


def _only_element(name: str, value: Tensor) -> Tensor:
    if value.numel() != 1:
        raise UsageError(
            f"s.log({name!r}, ...): a tensor of shape {tuple(value.shape)} is not one number: take"
            " its mean, for example"
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
