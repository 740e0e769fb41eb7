"""Memory for the arrays of an order.

The ranks of a node share a large array. Each rank has its own copy of a small one.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from hashlib import blake2b

from torchbus.plugin import SharedStore, World, warn

from torchbus_sampler.orders.array import OrderArray, own
from torchbus_sampler.orders.draws import Draws
from torchbus_sampler.orders.shared import NoRoom, NotShared, shared

SHARED_FROM = 2**20  # samples; it is faster to draw a smaller array than to ask for it
TOO_SMALL = (
    "the order of {} samples does not fit into shared memory ({}): each rank keeps its own copy,"
    " {:.1f} GB"
)


class Memory:
    """Gives arrays, which the ranks of a node share through ``store``; None if there is one rank.

    The first rank that asks draws the array. Ranks that ask meanwhile wait for it. No rank waits
    for one that does not draw.
    """

    def __init__(self, store: SharedStore | None = None, shared_from: int = SHARED_FROM) -> None:
        self._store = store
        self._shared_from = shared_from
        self._drawn: Counter[str] = Counter()
        self._offered: list[tuple[str, weakref.ref[OrderArray]]] = []

    def array(self, length: int, draws: Draws) -> OrderArray:
        """Return the next ``length`` indices.

        Afterwards the generator is in the state after these draws, even if another rank drew them.
        """
        if self._store is not None and draws.shared and length >= self._shared_from:
            try:
                return self._shared(self._store, length, draws)
            except NoRoom as error:
                warn(TOO_SMALL.format(length, error, length * 8 / 1e9))
            except NotShared:
                pass
        return own(length, draws.fill)

    def _shared(self, store: SharedStore, length: int, draws: Draws) -> OrderArray:
        self._forget(store)
        name = self._name(length, draws)
        found = shared(store, name, length, draws)
        if found.file is not None:
            self._offered.append((name, weakref.ref(found)))
        return found

    def _forget(self, store: SharedStore) -> None:
        """Remove from the store the arrays that this rank has drawn and released."""
        over = [name for name, array in self._offered if array() is None]
        self._offered = [(name, array) for name, array in self._offered if name not in over]
        with contextlib.suppress(RuntimeError):  # the store has gone
            for name in over:
                store.delete_key(name)

    def _name(self, length: int, draws: Draws) -> str:
        """Return a name that is equal on ranks that would draw the same, as often as before."""
        state = bytes(draws.generator.get_state().tolist())
        what = blake2b(state + f"{length} {draws.name}".encode(), digest_size=16).hexdigest()
        self._drawn[what] += 1
        return f"{what}/{self._drawn[what]}"


def memory_of(world: World) -> Memory:
    """Return the memory for the ranks of this node."""
    if world.store is None or world.local_world_size < 2:
        return Memory()
    return Memory(world.store.within(f"orders/{world.node_rank}"))
