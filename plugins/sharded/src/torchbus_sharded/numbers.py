"""``gradient.norm().item()`` is the number over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

READ = torch.ops.aten._local_scalar_dense.default


def read_whole() -> Callable[[], None]:
    """Torch reads a divided tensor's number from this rank's part alone, a sum still to be made too. Returns what puts that back."""
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    before = handlers.get(READ)

    def read(operator: Any, arguments: tuple[Any, ...], keywords: Any) -> Any:
        tensor = arguments[0]
        parts = any(not isinstance(placement, Replicate) for placement in tensor.placements)
        return (tensor.detach().full_tensor() if parts else tensor.to_local()).item()

    handlers[READ] = read
    return lambda: handlers.update({READ: before}) if before is not None else handlers.pop(READ, None) and None
