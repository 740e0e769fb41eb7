"""``gradient.norm().item()`` is the number over all ranks, and ``weight.numpy()`` has all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

READ = torch.ops.aten._local_scalar_dense.default


def read_whole() -> Callable[[], None]:
    """Torch reads a divided tensor's number from this rank's part alone, a sum still to be made too. Returns what puts that back."""
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    before = handlers.get(READ)

    def read(operator: Any, arguments: tuple[Any, ...], keywords: Any) -> Any:
        return whole(arguments[0]).item()

    handlers[READ] = read
    return lambda: handlers.update({READ: before}) if before is not None else handlers.pop(READ, None) and None


def whole(tensor: Any) -> Tensor:
    """A divided tensor, gathered. All ranks call it."""
    parts = any(not isinstance(placement, Replicate) for placement in tensor.placements)
    own = tensor.detach()
    gathered: Tensor = own.full_tensor() if parts else own.to_local()
    return gathered


def to_numpy(tensor: DTensor, *, force: bool = False) -> Any:
    """What is written into the array would be lost, so it can't be."""
    if tensor.requires_grad and not force:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    array = whole(tensor).numpy(force=force)
    array.flags.writeable = False
    return array


def to_list(tensor: DTensor) -> Any:
    return whole(tensor).tolist()


def formatted(tensor: DTensor, form: str) -> str:
    return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)
