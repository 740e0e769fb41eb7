"""Walks over orders, and over torch's own samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchbus.world import Share

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.orders.shared import SharedArrays
from torchbus_sampler.orders.sliced import SlicedOrder

State = tuple[bytes, bytes]
Step = tuple[Any, Share | None, bool, State]


def sliced(*place: Any) -> SlicedOrder:
    return SlicedOrder(*place, memory=SharedArrays())


def walk(
    order: DividedOrder, state: Callable[[], State], indices: Iterator[Any] | None = None
) -> Iterator[Step]:
    """What each step gives, with the generators' states after it; and at the end, None."""
    indices = iter(order) if indices is None else indices
    for drawn in indices:
        yield drawn, order.pending.popleft(), order.began_whole, state()
    yield None, None, True, state()
