"""Reading: ``gradient.norm().item()`` and ``weight.numpy()`` give numbers of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from torchbus._compat.dtensors import READ
from torchbus._dtensors.values import whole

if TYPE_CHECKING:
    import numpy as np


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
    array: np.ndarray[Any, Any] = whole(tensor).numpy(force=force)
    array.flags.writeable = False
    return array


def formatted(tensor: DTensor, form: str) -> str:
    return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)


READS: dict[object, Callable[..., object]] = {READ: read}
"""What DTensor calls for the operator that reads a number."""

METHODS: dict[str, object] = {"tolist": to_list, "numpy": to_numpy, "__format__": formatted}
"""Methods that DTensor inherits, and that need the whole tensor."""
