"""Prefetching: while a unit computes, the next one is gathered.

On GPUs torch's engine does so by itself, because the host runs ahead of the device. On CPU it
would gather a unit when it needs it, and wait.
"""

from __future__ import annotations

import weakref
from itertools import pairwise

from torch.nn import Module
from torchbus.plugin import Context

from torchbus_sharded._compat.fsdp2 import gather_ahead, units_in


class Prefetch:
    """Learns the order of the units from the first forwards.

    A later forward that takes another order gathers each unit on demand.
    """

    def __init__(self, session: Context) -> None:
        self._learns = session.device.type == "cpu"
        self._orders: weakref.WeakKeyDictionary[Module, list[list[Module]]] = (
            weakref.WeakKeyDictionary()
        )
        self._order: list[Module] = []

    def add(self, model: Module) -> None:
        """Let a backward prefetch without waiting."""
        for unit in units_in(model) if self._learns else []:
            gather_ahead(unit)

    def begin(self, model: Module) -> None:
        """A forward for training begins."""
        if self._learns:
            self._order = []
            self._orders.setdefault(model, []).append(self._order)

    def passing(self, unit: Module) -> None:
        self._order.append(unit)

    def end(self) -> None:
        """The forward has ended. Units that are called by themselves belong to no order."""
        self._order = []

    def settle(self, forwards: bool) -> None:
        """Prefetch from now on. All ranks have passed the same units, so all decide alike.

        ``forwards``: also in forwards, which is wrong if they write to parts without a trace.
        """
        for model, orders in self._orders.items() if forwards else ():
            first = orders[0]
            if all(order == first for order in orders) and len(set(map(id, first))) == len(first):
                for unit, following in pairwise([model, *first]):
                    unit.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
        self._orders.clear()
        self._learns = False
