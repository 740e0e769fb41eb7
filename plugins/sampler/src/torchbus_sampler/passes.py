"""What a pass over a loader gives to the loop: this rank's share of each batch."""

from __future__ import annotations

from torchbus.plugin import Pass, Share

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.stream import SharedBatch


def unpack(batch: object, divided: DividedOrder | None) -> tuple[Share, object]:
    """Return the share of a batch, and what the loop gets instead of the batch, if anything."""
    if isinstance(batch, SharedBatch):
        return batch.share, batch.batch
    return (Share() if divided is None else divided.take()), None


def divided_order(order: Pass | None) -> DividedOrder | None:
    """Return the divided order that a pass draws from, if there is one."""
    found = (
        None
        if order is None
        else order.replacements.get("batch_sampler", order.replacements.get("sampler"))
    )
    return found if isinstance(found, DividedOrder) else None
