"""Batches of captured loaders are moved to the rank's device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from torchbus._batches.nested import map_tensors
from torchbus.events import hookimpl

if TYPE_CHECKING:
    from torchbus._session.context import Context


class BatchesToDevice:
    """A loop without ``.to(device)`` works; in one that has it, it finds nothing left to do."""

    def __init__(self, session: Context) -> None:
        self._session = session

    @hookimpl
    def batch_ready(self, loader: DataLoader[Any], batch: Any) -> Any:
        return to_device(batch, self._session.device) if self._session.captures(loader) else None


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors in any nesting of lists, tuples, named tuples and mappings, moved; everything else as it is."""
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))
