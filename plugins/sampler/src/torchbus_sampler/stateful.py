"""A divided order whose place can be saved, for loaders that have a ``state_dict()`` (torchdata's StatefulDataLoader)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.orders.memory import Memory
from torchbus_sampler.orders.sliced import SlicedOrder

STEPS = "torchbus_steps"


class StatefulOrder(DividedOrder):
    """Its iterators have a ``state_dict()`` and a ``load_state_dict()``, which such loaders look for."""

    def __iter__(self) -> OrderIterator:
        return OrderIterator(self)

    def divided(self) -> Iterator[Any]:
        """This rank's share of what ``source`` still has."""
        return super().__iter__()

    def begin(self, skip: int = 0, inner: dict[str, Any] | None = None) -> None:
        """Make the iterator of the script's own order: where ``inner``, a state of it, says; past so many steps where it has no state."""
        with self._random.order():
            self.source = iter(self._inner)
            if inner and hasattr(self.source, "load_state_dict"):
                self.source.load_state_dict(inner)
            else:
                for _ in islice(self.source, skip * self._batches_per_step):
                    pass

    def inner_state(self) -> dict[str, Any]:
        return dict(self.source.state_dict()) if hasattr(self.source, "state_dict") else {}


class OrderIterator:
    """A rank's batches of indices. The state is that of the script's own order, the same on all ranks, and so goes for loaders that are not
    divided, and theirs for this one."""

    def __init__(self, order: StatefulOrder) -> None:
        self._order = order
        self._steps = 0
        order.begin()
        self._batches = order.divided()

    def __iter__(self) -> OrderIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._steps += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {**self._order.inner_state(), STEPS: self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state.get(STEPS, 0)
        self._order.begin(self._steps, {name: value for name, value in state.items() if name != STEPS})
        self._batches = self._order.divided()


def kind_of_order(loader: DataLoader[Any], memory: Memory) -> Callable[..., DividedOrder]:
    """What divides its order."""
    return StatefulOrder if hasattr(loader, "load_state_dict") else partial(SlicedOrder, memory=memory)


def settle(order: DividedOrder | None, iterator: Any) -> None:
    """Batches that a loader has gone past while it went on from a state are nobody's any more; those that its workers load are."""
    ahead = getattr(iterator, "_send_idx", 0) - getattr(iterator, "_rcvd_idx", 0)
    while isinstance(order, StatefulOrder) and len(order.pending) > ahead:
        order.pending.popleft()
