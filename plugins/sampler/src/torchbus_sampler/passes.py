"""What a pass over a loader hands to the loop: this rank's share of each batch."""

from __future__ import annotations

from typing import Any

from torchbus.plugin import Pass, Share

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.stream import SharedBatch


def unpack(batch: Any, divided: DividedOrder | None) -> tuple[Share, Any]:
    """The share of a batch, and what to hand to the loop instead of it, if anything."""
    if isinstance(batch, SharedBatch):
        return batch.share, batch.batch
    return (Share() if divided is None else divided.pending.popleft()), None


def divided_order(order: Pass | None) -> DividedOrder | None:
    """The divided order that a pass draws from, if it does."""
    found = None if order is None else order.replacements.get("batch_sampler", order.replacements.get("sampler"))
    return found if isinstance(found, DividedOrder) else None
