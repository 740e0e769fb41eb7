"""Reading: ``gradient.norm().item()`` is the norm over all ranks, ``weight.numpy()`` the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from torchbus_sharded._compat import dtensor

if TYPE_CHECKING:
    import numpy as np


def read_whole() -> Callable[[], None]:
    """Read a number from the whole tensor. Returns a function that undoes this.

    Torch reads it from only this rank's part, even from a sum that is still to be made over ranks.
    """
    handlers = dtensor.handlers()
    before = handlers.get(dtensor.READ)

    def read(operator: object, arguments: tuple[DTensor, ...], keywords: object) -> object:
        return whole(arguments[0]).item()

    handlers[dtensor.READ] = read
    return lambda: (
        handlers.update({dtensor.READ: before})
        if before is not None
        else handlers.pop(dtensor.READ, None) and None
    )


def whole(tensor: DTensor) -> Tensor:
    """A divided tensor, gathered. All ranks call it."""
    parts = any(not isinstance(placement, Replicate) for placement in tensor.placements)
    own = tensor.detach()
    assert isinstance(own, DTensor)
    return own.full_tensor() if parts else own.to_local()


def to_numpy(tensor: DTensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """A read-only array: what the script writes into it would be lost."""
    if tensor.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    array = whole(tensor).numpy(force=force)
    array.flags.writeable = False
    return array


def to_list(tensor: DTensor) -> object:
    return whole(tensor).tolist()


def formatted(tensor: DTensor, form: str) -> str:
    return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)
