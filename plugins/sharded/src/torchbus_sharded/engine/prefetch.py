"""While a unit computes, the next one is gathered. On GPUs the host runs ahead of the device, and torch's engine does so by itself; on CPU it
gathers when it needs something, and waits."""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any

from torch.nn import Module
from torchbus.plugin import Context

from torchbus_sharded.engine.fsdp2 import units_in


class Ahead:
    """The order of the units is learnt from the first forwards. One that comes by another way later gathers what it needs, as without this."""

    def __init__(self, session: Context) -> None:
        self._learns = session.device.type == "cpu"
        self._orders: weakref.WeakKeyDictionary[Module, list[list[Module]]] = weakref.WeakKeyDictionary()
        self._order: list[Module] = []

    def add(self, model: Module) -> None:
        """What a backward gathers ahead it need not wait for."""
        for unit in units_in(model) if self._learns else []:
            in_newer_releases: Any = getattr(unit, "_set_unshard_async_op", lambda _: None)
            in_newer_releases(True)

    def begin(self, model: Module) -> None:
        """A forward for training."""
        if self._learns:
            self._order = []
            self._orders.setdefault(model, []).append(self._order)

    def passing(self, unit: Module) -> None:
        self._order.append(unit)

    def end(self) -> None:
        """Of the forward; units that are called by themselves belong to no order."""
        self._order = []

    def settle(self) -> None:
        """Enough was seen. All ranks, which have passed the same units, come to the same."""
        for model, orders in self._orders.items():
            first = orders[0]
            if all(order == first for order in orders) and len(set(map(id, first))) == len(first):
                for unit, following in pairwise([model, *first]):
                    unit.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
        self._orders.clear()
        self._learns = False
