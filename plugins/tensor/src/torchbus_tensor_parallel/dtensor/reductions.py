"""Numbers that are made of a whole DTensor: a norm of a gradient, the sum of a penalty.

They are plain tensors with a graph, so that the loop may mix them with others: add them to a loss,
or scale gradients in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from torchbus_tensor_parallel.dtensor.gradients import gathered

NAMES = ("sum", "mean", "norm", "prod", "std", "var", "max", "min", "amax", "amin", "dot")


def _plain(name: str) -> Callable[..., object]:
    original = getattr(Tensor, name)

    def reduce(tensor: DTensor, *args: Any, **kwargs: Any) -> object:
        found = original(tensor, *args, **kwargs)
        is_number = isinstance(found, DTensor) and found.dim() == 0
        return gathered(found).clone() if is_number else found  # no view: it may be written

    return reduce


METHODS: dict[str, object] = {name: _plain(name) for name in NAMES}
"""Methods that DTensor inherits. All ranks call them, as they do with torch's."""
