"""What a rank asks of the store at the start and at the end does not depend on the world's size."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist
from torchbus.world import World

from torchbus_launch import secret
from torchbus_launch.broadcast_log import ALL_ENDED, BroadcastLog
from torchbus_launch.ending import EndCounts, JobEnd
from torchbus_launch.freeze import LocalProcesses
from torchbus_launch.relaunch import wait_until_joined
from torchbus_launch.store import SealedStore, StoreBarrier
from torchbus_testing.recorder import CountedStore

SIZES = (2, 8, 16384)


def served() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def others_say(store: SealedStore, word: str, rank: int, world_size: int) -> None:
    """What all others have added."""
    call = StoreBarrier(store, word, rank, world_size)
    store.count(word, sum(call._numbers()) - call._numbers()[rank])


def test_the_last_tells_all() -> None:
    store = SealedStore(dist.HashStore(), b"key")
    calls = [StoreBarrier(store, "here", rank, 3) for rank in range(3)]
    assert [calls[2].say(), calls[0].say(), calls[1].is_complete()] == [False, False, False]
    assert calls[1].say() and all(call.is_complete() for call in calls)
    assert not StoreBarrier(store, "gone", 0, 3).is_complete()


def test_others_than_the_ranks_complete_nothing() -> None:
    raw = dist.HashStore()
    store = SealedStore(raw, b"key")
    StoreBarrier(store, "here", 0, 3).say()
    StoreBarrier(store, "elsewhere", 1, 3).say()
    another = SealedStore(raw, b"another")
    assert [StoreBarrier(another, "here", rank, 3).say() for rank in range(3)][2]
    raw.set("here", "3")
    assert not StoreBarrier(store, "here", 1, 3).say()
    assert not StoreBarrier(store, "here", 1, 3).is_complete()


def requests_at_the_end(rank: int, world_size: int) -> int:
    raw = served()
    others = SealedStore(raw, b"key")
    store, log = CountedStore(raw, b"key"), BroadcastLog(others)
    log.start()
    ending = JobEnd(World(rank, world_size), store, log)
    for word in ("loop ended", "ended", "left"):
        others_say(others, word, rank, world_size)
    ending.say_loop_ended(EndCounts(rank, 9, 9))
    for _ in range(10_000):  # a rank that has not read an entry yet makes two requests more
        if ending.have_loops_ended:
            break
        time.sleep(0.001)
    ending.say()
    log._thread.join(30)
    assert ending.is_complete and log.has(ALL_ENDED)
    ending.leave()
    ending.wait_for_all(1.0)
    log.stop()
    return store.requests


def requests_at_the_start(rank: int, world_size: int) -> int:
    """Of a rank that a launcher has started, until it knows its host's other ranks."""
    raw = served()
    others, store = SealedStore(raw, b"key"), CountedStore(raw, b"key")
    if rank:
        others.set("torchbus key/0", "")
    others_say(others, "has the key", rank, world_size)
    secret.compare(store, rank, range(world_size))
    processes = LocalProcesses(store, rank, min(world_size, 8))
    processes.discover()
    return store.requests


def requests_of_a_launched_rank(rank: int, world_size: int) -> int:
    """Of local rank 0 of a node with ranks that the session has started, until all have joined."""
    store = CountedStore(dist.HashStore(), b"key")
    others_say(store, "joined", rank, world_size)
    store.requests = 0
    wait_until_joined(store, World(rank, world_size, local_world_size=world_size), [])
    return store.requests


COUNTS = [requests_at_the_start, requests_of_a_launched_rank, requests_at_the_end]


@pytest.mark.parametrize("count", COUNTS)
def test_as_many_requests_in_any_world(count) -> None:
    for place in (0, -1):
        found = [count(place % size, size) for size in SIZES]
        assert max(found) < 24 and max(found) - min(found) <= 4  # an entry read late


def test_ranks_of_a_host_find_each_other_in_its_list() -> None:
    raw = dist.HashStore()
    store = SealedStore(raw, b"key")
    raw.set("processes/another host/0", "[5]")
    first, second, third = (LocalProcesses(store, rank, 3) for rank in (7, 4, 9))
    for one in (first, second, third):
        one.discover()
        one.discover()
    assert sorted(first.found) == [4, 9] and sorted(second.found) == [7, 9]
    assert sorted(third.found) == [4, 7] and first.ended() == []


def test_many_values_are_one_request() -> None:
    store = CountedStore(dist.HashStore(), b"key")
    names = [f"name {number}" for number in range(100)]
    values = [name.encode() for name in names]
    store.set_all(dict(zip(names, values, strict=True)))
    assert store.requests == 1
    assert store.multi_get(names) == values and store.requests == 2
    assert store.check(names) and store.requests == 4
    assert store.read_all(names) == values and store.requests == 6
    assert store.read_all([*names, "missing"]) is None and store.requests == 7
    store._held[0].set(names[7], "a stranger's")
    assert not store.check(names) and store.read_all(names) is None
