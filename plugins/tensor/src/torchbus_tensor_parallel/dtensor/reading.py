"""Reading: ``gradient.norm().item()`` and ``weight.tolist()`` give numbers of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    import numpy as np


def whole(tensor: DTensor) -> torch.Tensor:
    """A divided tensor, gathered, without a graph. All ranks of a tensor group call it."""
    own = tensor.detach()
    assert isinstance(own, DTensor)
    gathered: torch.Tensor = own.full_tensor()
    return gathered


def read(operator: object, arguments: tuple[DTensor, ...], keywords: object) -> object:
    """``item()``: torch reads it from this rank's part, even from a sum still to be made."""
    return whole(arguments[0]).item()


def to_list(tensor: DTensor) -> object:
    return whole(tensor).tolist()


def to_numpy(tensor: DTensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """A read-only array: what the script writes into it would be lost."""
    if tensor.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    array = whole(tensor).numpy(force=force)
    array.flags.writeable = False
    return array


def formatted(tensor: DTensor, form: str) -> str:
    return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)


METHODS: dict[str, Callable[..., object]] = {
    "tolist": to_list,
    "numpy": to_numpy,
    "__format__": formatted,
}


def replace(name: str) -> Callable[[], None]:
    """Give DTensor one of these methods, which it inherits. Returns what takes it away again."""
    setattr(DTensor, name, METHODS[name])
    return lambda: delattr(DTensor, name)
