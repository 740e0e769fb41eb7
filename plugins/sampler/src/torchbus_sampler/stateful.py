"""A divided order that has a state, for loaders with a ``state_dict()``.

An example of such a loader is torchdata's StatefulDataLoader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from torchbus_sampler._compat import check, on_the_way
from torchbus_sampler.order import DividedOrder
from torchbus_sampler.orders.shared import SharedArrays
from torchbus_sampler.orders.sliced import SlicedOrder

STEPS = "torchbus_steps"


class StatefulOrder(DividedOrder):
    """An order whose iterators have a ``state_dict()`` and a ``load_state_dict()``."""

    def __iter__(self) -> OrderIterator:
        return OrderIterator(self)

    def divided(self) -> Iterator[object]:
        """Iterate over this rank's share of the rest of ``source``."""
        return super().__iter__()

    def begin(self, skip: int = 0, inner: dict[str, object] | None = None) -> None:
        """Create the iterator of the script's own order.

        The iterator starts at the state ``inner``. If it can't load a state, it skips ``skip``
        steps.
        """
        with self._random.order():
            self.source = iter(self._inner)
            if inner and hasattr(self.source, "load_state_dict"):
                self.source.load_state_dict(inner)
            else:
                for _ in islice(self.source, skip * self._batches_per_step):
                    pass

    def inner_state(self) -> dict[str, object]:
        source: Any = self.source
        return dict(source.state_dict()) if hasattr(source, "state_dict") else {}


class OrderIterator:
    """A rank's batches of indices.

    The state is that of the script's own order, which is the same on all ranks. So divided and
    undivided loaders can load each other's state.
    """

    def __init__(self, order: StatefulOrder) -> None:
        self._order = order
        self._steps = 0
        order.begin()
        self._batches = order.divided()

    def __iter__(self) -> OrderIterator:
        return self

    def __next__(self) -> object:
        batch = next(self._batches)
        self._steps += 1
        return batch

    def state_dict(self) -> dict[str, object]:
        return {**self._order.inner_state(), STEPS: self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state.get(STEPS, 0)
        self._order.begin(
            self._steps, {name: value for name, value in state.items() if name != STEPS}
        )
        self._batches = self._order.divided()


def kind_of_order(loader: DataLoader[object], memory: SharedArrays) -> Callable[..., DividedOrder]:
    """Return the class that divides the loader's order."""
    return (
        StatefulOrder if hasattr(loader, "load_state_dict") else partial(SlicedOrder, memory=memory)
    )


def drop_skipped(order: DividedOrder | None, iterator: object) -> None:
    """Drop the shares of batches that a loader has skipped to get to its state.

    The shares of batches that the workers are loading stay.
    """
    check()
    ahead = on_the_way(iterator)
    while isinstance(order, StatefulOrder) and len(order.pending) > ahead:
        order.pending.popleft()
