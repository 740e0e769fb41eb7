"""What guards hear from each other, and what they ask of the store for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torchbus.world import World

from torchbus_launch import hang
from torchbus_launch.broadcast_log import ALL_ENDED, ENDED, FAILED, LOOPS_ENDED, BroadcastLog
from torchbus_launch.ending import EndCounts, JobEnd
from torchbus_launch.hang import Questions, report
from torchbus_launch.rank_position import RankPosition
from torchbus_launch.store import REQUESTS_PER_S, SealedStore, pause_s


@pytest.fixture
def store() -> SealedStore:
    return SealedStore(
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), b"key"
    )


@pytest.fixture
def listeners(store: SealedStore) -> Iterator[list[BroadcastLog]]:
    found = [BroadcastLog(store) for _ in range(3)]
    for log in found:
        log.start()
    yield found
    found[0].append(store, FAILED)
    for log in found:
        log.stop()
        assert not log._thread.is_alive()


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_all_hear_the_same_in_the_same_order_and_each_item_once(store, listeners):
    def write(log: BroadcastLog) -> None:
        for number in range(5):
            log.append(store, f"item {number}")

    threads = [threading.Thread(target=write, args=[log]) for log in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: all(len(log.all("item ")) == 5 for log in listeners))
    orders = [log.all("item ") for log in listeners]
    assert orders[0] == orders[1] == orders[2] and sorted(orders[0]) == list("01234")


def test_an_unsigned_item_is_not_heard_and_stops_nobody(store, listeners):
    store.raw.set("news/1", "failed")
    time.sleep(0.1)
    assert not any(log.has(FAILED) for log in listeners)
    listeners[1].append(store, ALL_ENDED)
    until(lambda: all(log.has(ALL_ENDED) for log in listeners))


def test_a_store_that_has_gone_is_noticed():
    store = SealedStore(
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), b"key"
    )
    log = BroadcastLog(store)
    log.start()
    store.close()
    until(lambda: log.lost)
    log.stop()


def test_news_that_never_ends_by_itself_is_stopped(store):
    log = BroadcastLog(store)
    log.start()
    log.stop()
    assert not log._thread.is_alive() and store.check([]) in (True, False)


counts = st.builds(EndCounts, st.integers(0, 2), st.integers(0, 3), st.none() | st.integers(0, 3))


@settings(deadline=None)
@given(counts, counts, st.integers(0, 3), st.none() | st.integers(0, 3))
def test_no_end_is_left_out_that_a_rank_waits_for(told, other, number, begun):
    place = RankPosition(0, f"backward {number}", "", "", number - 1)
    if told.is_no_more_than(other) and other.never_comes_to(place, begun):
        assert told.never_comes_to(place, begun)


def test_ranks_that_did_the_same_tell_it_once(store, listeners):
    JobEnd(World(0, 4), store, listeners[0]).say_loop_ended(EndCounts(0, 4, 9))
    until(lambda: all(log.all(ENDED) for log in listeners))
    for rank in (1, 2):
        JobEnd(World(rank, 4), store, listeners[rank]).say_loop_ended(EndCounts(rank, 4, 9))
    JobEnd(World(3, 4), store, listeners[1]).say_loop_ended(EndCounts(3, 3, 9))
    until(lambda: all(len(log.all(ENDED)) == 2 and log.has(LOOPS_ENDED) for log in listeners))


def place(rank: int, waits_in: str = "backward 41") -> RankPosition:
    return RankPosition(rank, waits_in, "train.py:57", "loss.backward()", 41)


def asked(store, listeners, monkeypatch, places):
    """What rank 0 is told, with three ranks of a world that is said to be larger."""
    monkeypatch.setattr(hang, "ANSWERS_WITHIN_S", 1.0)
    ranks = [
        Questions(store, log, rank, 5000, lambda rank=rank: places[rank], lambda: None)
        for rank, log in enumerate(listeners)
    ]
    over = threading.Event()

    def answer(one: Questions) -> None:
        while not over.wait(0.02):
            one.answer()

    threads = [threading.Thread(target=answer, args=[one]) for one in ranks[1:]]
    for thread in threads:
        thread.start()
    found = ranks[0].ask()
    over.set()
    for thread in threads:
        thread.join()
    return found


def test_of_thousands_of_ranks_only_those_elsewhere_answer(store, listeners, monkeypatch):
    places = [place(0), place(1), place(2, "")]
    found = asked(store, listeners, monkeypatch, places)
    assert found == [places[0], places[2]]
    told = report(found, 5000, 61.0, all_answer=False)
    assert "rank 0 waits in backward 41, at train.py:57" in told
    assert "rank 2 is elsewhere, after 41 backward calls" in told
    assert "of 5000 ranks, 1 say that they are elsewhere than rank 0" in told
    assert "It may only be slow" in told


def test_of_ranks_that_are_elsewhere_only_the_first_are_written_down(store, listeners, monkeypatch):
    monkeypatch.setattr(hang, "SLOTS", 1)
    found = asked(store, listeners, monkeypatch, [place(0), place(1, ""), place(2, "")])
    assert len(found) == 2 and found[1].rank in (1, 2)


def test_one_question_at_a_time(store, listeners):
    ranks = [
        Questions(store, log, rank, 2, lambda rank=rank: place(rank), lambda: None)
        for rank, log in enumerate(listeners[:2])
    ]
    store.set("asker/1", "1")
    assert ranks[0].ask() is None


def test_ranks_of_a_large_world_ask_at_a_pace_that_one_store_answers():
    assert pause_s(0.05, 16) == 0.05
    assert 10000 / pause_s(0.05, 10000) <= REQUESTS_PER_S


@pytest.mark.parametrize("words", ["backward 12", "backward 12 after 40 collectives"])
@pytest.mark.parametrize(("made", "never"), [(11, True), (12, False)])
@pytest.mark.parametrize("counted", [11, 12], ids=["waits in it", "has just counted it"])
def test_a_rank_that_made_as_many_backwards_as_another_waits_in_is_no_error(
    words, made, never, counted
):
    place = RankPosition(0, words, "", "", counted)
    assert EndCounts(1, made, None).never_comes_to(place, None) is never
