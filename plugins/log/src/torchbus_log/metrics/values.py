"""What users log: checked, and kept where it is."""

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
    """An object that gathers a metric by itself, over ranks too, as torchmetrics' do."""

    def update(self, *args: Any, **kwargs: Any) -> None: ...

    def compute(self) -> Any: ...

    def reset(self) -> None: ...


def check_name(name: object) -> str:
    """A metric's name. Raises UsageError for anything but a string that is not empty."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"s.log({name!r}, ...): the name must be a string")
    return name


def kept(name: str, value: Any) -> Value:
    """The number of a Python or NumPy number, or of a tensor with one element in the host's memory. Any other tensor may be on a
    device that one would wait for: of such a one, a copy that stays there, for the loop may go on to change it in place.

    Raises UsageError naming the metric.
    """
    try:
        if type(value) is Tensor and value.is_cpu:  # to read it waits for nothing, and takes a tenth of the time of a copy
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
        raise UsageError(f"s.log({name!r}, ...): a tensor of shape {tuple(value.shape)} is not one number: take its mean, say")
    return value.reshape(())


def to_host(values: Iterable[Value]) -> list[float]:
    """Plain numbers, in the same order: one copy for each device and dtype that occurs."""
    told = list(values)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, value in enumerate(told):
        if isinstance(value, Tensor):
            alike.setdefault((value.device, value.dtype), []).append(index)
    for indices in alike.values():
        numbers = torch.stack([told[index] for index in indices]).tolist()  # type: ignore[misc]
        for index, number in zip(indices, numbers, strict=True):
            told[index] = float(number)
    return told  # type: ignore[return-value]
