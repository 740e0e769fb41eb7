"""What ranks ask of the store that all of them share for the rates of all ranks."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from torchbus_launch.store import SealedStore
from torchbus_testing.recorder import CountedStore
from torchbus_throughput.meter import END, WindowExchange, WindowPart

WORLDS = (2, 64, 4096)
PART = WindowPart(2.0, 10.0, 30.0)


def told(world_size: int) -> tuple[WindowExchange, CountedStore]:
    """What rank 0 has, in a world of so many."""
    store = CountedStore(dist.HashStore(), b"key")
    session: Any = SimpleNamespace(rank=0, world_size=world_size)
    session.world = SimpleNamespace(shared=SimpleNamespace(within=lambda word: store))
    return WindowExchange(session), store


def others_tell(ranks: WindowExchange, store: CountedStore, number: int, but: int = 0) -> None:
    others = SealedStore(store._held[0], b"key")
    for rank in range(1, ranks._count - but):
        others.set(ranks._key(rank, number), json.dumps([number, *PART._replace(samples=rank)]))


def test_all_parts_are_there_with_as_many_requests_in_any_world() -> None:
    for size in WORLDS:
        for number in (0, END):
            ranks, store = told(size)
            others_tell(ranks, store, number)
            ranks.publish(number, PART)
            assert store.requests == 1
            found = ranks.parts(number, PART)
            assert found is not None and store.requests == 3
            assert [one.samples for one in found] == [10.0, *range(1, size)]


def test_a_window_that_a_rank_has_not_told_of_is_not_known() -> None:
    for size in WORLDS:
        ranks, store = told(size)
        ranks.publish(0, PART)
        others_tell(ranks, store, 0, but=1)
        assert ranks.parts(0, PART) is None and store.requests == 2
        others_tell(ranks, store, 0)
        others_tell(ranks, store, 2 * ranks.every)  # in the place of the first
        assert ranks.parts(0, PART) is None and ranks.parts(2 * ranks.every, PART) is None


def test_large_worlds_tell_of_fewer_windows() -> None:
    """So that the store has as much to do."""
    requests = []
    for size in (2, 1000, 1001, 16384):
        ranks, _ = told(size)
        assert ranks.is_published(0) and ranks.is_published(END)
        requests.append(size * sum(map(ranks.is_published, range(1020))))
    assert requests[0] == 2 * 1020
    assert max(requests) <= 1000 * 1020
