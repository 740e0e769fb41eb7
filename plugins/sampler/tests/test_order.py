"""One pass over a loader: every index once, in the user's order, at every number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, islice, zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torchbus.world import Share

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.stream import Collate, DividedStream
from torchbus_strategy.random_streams import RandomStreams

Step = tuple[Share, list[Any]]


def draw(order: DividedOrder) -> Iterator[Step]:
    """Each step's share, and the indices that the loader is to load for it."""
    for indices in order:
        yield order.pending.popleft(), indices


def orders(
    make: Callable[[], Any], num_ranks: int, per_step: int, pad: bool = True, batched: bool = True
) -> list[DividedOrder]:
    """The orders of all ranks, each with a sampler of its own that was seeded alike."""
    return [
        DividedOrder(make(), rank, num_ranks, per_step, batched, RandomStreams(), pad)
        for rank in range(num_ranks)
    ]


def batch_sampler(
    num_samples: int, batch_size: int, drop_last: bool, shuffle: bool
) -> BatchSampler:
    data = range(num_samples)
    sampler = (
        RandomSampler(data, generator=torch.Generator().manual_seed(5))
        if shuffle
        else SequentialSampler(data)
    )
    return BatchSampler(sampler, batch_size, drop_last)


def check(steps: list[list[Step]], expected: list[list[Any]], at_least: int = 2) -> None:
    """``steps[rank]`` against the global batch of every step."""
    num_ranks = len(steps)
    assert [len(mine) for mine in steps] == [len(expected)] * num_ranks
    for number, whole in enumerate(expected):
        shares, loaded = zip(*[mine[number] for mine in steps], strict=True)
        assert list(chain(*[share.indices for share in shares])) == whole
        assert sum(share.weight for share in shares) == pytest.approx(num_ranks)
        assert len({share.position for share in shares}) == 1
        for share, indices in zip(shares, loaded, strict=True):
            assert indices and (list(share.indices) == indices or not share.indices)
            assert share.weight == pytest.approx(len(share.indices) * num_ranks / len(whole))
            assert not share.indices or len(share.indices) >= min(at_least, len(whole))


sizes = {
    "num_samples": st.integers(1, 60),
    "batch_size": st.integers(1, 7),
    "num_ranks": st.integers(2, 5),
}


@given(**sizes, drop_last=st.booleans(), shuffle=st.booleans())
def test_per_device(num_samples, batch_size, num_ranks, drop_last, shuffle):
    """N ranks with batch B take at each step what one process takes with batch N*B."""

    def make() -> BatchSampler:
        return batch_sampler(num_samples, batch_size, drop_last, shuffle)

    divided = orders(make, num_ranks, num_ranks)
    whole = [
        list(batch)
        for batch in batch_sampler(num_samples, batch_size * num_ranks, drop_last, shuffle)
    ]
    steps = [list(draw(order)) for order in divided]
    check(steps, whole, at_least=2 if batch_size > 2 else 1)
    assert {len(order) for order in divided} == {len(whole)}
    for mine in steps:
        assert all(len(indices) == batch_size for _, indices in mine[:-1])


@given(**sizes, drop_last=st.booleans(), shuffle=st.booleans())
def test_global(num_samples, batch_size, num_ranks, drop_last, shuffle):
    """The script's own batch is divided: the steps are those of one process."""

    def make() -> BatchSampler:
        return batch_sampler(num_samples, batch_size, drop_last, shuffle)

    divided = orders(make, num_ranks, 1)
    check([list(draw(order)) for order in divided], [list(batch) for batch in make()])
    assert {len(order) for order in divided} == {len(make())}


@given(
    batches=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), max_size=9),
    num_ranks=st.integers(2, 4),
)
def test_batches_of_any_size(batches, num_ranks):
    """A batch sampler of the user's own, say by the length of sentences."""
    divided = orders(lambda: batches, num_ranks, num_ranks)
    whole = [
        list(chain(*batches[start : start + num_ranks]))
        for start in range(0, len(batches), num_ranks)
    ]
    check([list(draw(order)) for order in divided], whole, at_least=1)
    assert {len(order) for order in divided} == {len(whole)}


@given(**sizes)
def test_without_padding(num_samples, batch_size, num_ranks):
    """In evaluation a rank without samples gets no batch, and nothing is weighted."""
    divided = orders(
        lambda: batch_sampler(num_samples, batch_size, False, False),
        num_ranks,
        num_ranks,
        pad=False,
    )
    steps = [list(draw(order)) for order in divided]
    taken = [
        index for step in zip_longest(*steps) for one in step if one is not None for index in one[1]
    ]
    assert taken == list(range(num_samples))
    assert all(share.weight == 1.0 for mine in steps for share, _ in mine)


@given(num_samples=st.integers(1, 20), num_ranks=st.integers(2, 4))
def test_a_sampler_of_single_indices(num_samples, num_ranks):
    """``batch_size=None``: the loader loads one index at a time."""
    divided = orders(
        lambda: SequentialSampler(range(num_samples)), num_ranks, num_ranks, batched=False
    )
    steps = [[(share, [index]) for share, index in draw(order)] for order in divided]
    whole = [
        list(range(start, min(start + num_ranks, num_samples)))
        for start in range(0, num_samples, num_ranks)
    ]
    check(steps, whole, at_least=1)


@given(
    sizes_=st.tuples(st.integers(4, 40), st.integers(1, 4), st.integers(2, 4)),
    epochs=st.integers(2, 3),
)
def test_each_pass_goes_on_with_the_generator(sizes_, epochs):
    num_samples, batch_size, num_ranks = sizes_
    divided = orders(
        lambda: batch_sampler(num_samples, batch_size, False, True), num_ranks, num_ranks
    )
    plain = batch_sampler(num_samples, batch_size * num_ranks, False, True)
    for _ in range(epochs):
        check(
            [list(draw(order)) for order in divided],
            [list(batch) for batch in plain],
            at_least=2 if batch_size > 2 else 1,
        )


def test_a_pass_that_was_left_leaves_nothing_pending():
    order = orders(lambda: batch_sampler(12, 2, False, False), 2, 2)[0]
    next(iter(order))
    assert len(order.pending) == 1
    assert [share.indices for share, _ in draw(order)] == [(0, 1), (4, 5), (8, 9)]


def test_orders_that_differ_have_other_positions():
    ours, theirs = ([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1], [2, 3], [4, 6], [5, 7]])
    first, second = (
        [share.position for share, _ in draw(orders(lambda order=order: order, 2, 2)[0])]
        for order in (ours, theirs)
    )
    assert first[0] == second[0] and first[1] != second[1]


def test_samplers_are_drawn_lazily():
    """Some have 1e10 draws."""
    drawn = []

    class Endless:
        def __iter__(self):
            for number in count():
                drawn.append(number)
                yield [number]

    order = orders(Endless, 2, 2)[1]
    assert [indices for _, indices in islice(draw(order), 3)] == [[1], [3], [5]]
    assert len(drawn) == 6


def test_keys_need_not_be_numbers():
    divided = orders(lambda: [["a", "b"], ["c", "d"], ["e"]], 2, 2)
    assert [[list(share.indices) for share, _ in draw(order)] for order in divided] == [
        [["a", "b"], ["e"]],
        [["c", "d"], []],
    ]


@given(**sizes, drop_last=st.booleans())
def test_a_stream(num_samples, batch_size, num_ranks, drop_last):
    """An iterable dataset: the loader batches what its rank's stream yields."""
    chunk = batch_size * num_ranks
    streams = [
        DividedStream(
            range(num_samples), rank, num_ranks, chunk, drop_last, True, None, RandomStreams()
        )
        for rank in range(num_ranks)
    ]
    steps = [
        list(DataLoader(stream, stream.batch_size, collate_fn=Collate(list, stream)))
        for stream in streams
    ]
    whole = [
        list(range(start, min(start + chunk, num_samples)))
        for start in range(0, num_samples, chunk)
    ]
    if drop_last and num_samples % chunk:
        whole.pop()
    assert [len(mine) for mine in steps] == [len(whole)] * num_ranks
    for number, samples in enumerate(whole):
        batches = [mine[number] for mine in steps]
        assert [value for each in batches for value in each.batch if each.share.weight] == samples
        assert sum(each.share.weight for each in batches) == pytest.approx(num_ranks)
        assert len({each.share.position for each in batches}) == 1


class CountedStreams(RandomStreams):
    """Counts how often the order's stream is asked for."""

    asked = 0

    def order(self) -> Any:
        self.asked += 1
        return super().order()


class Unknown:
    """A sampler of a class that torchbus does not know."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(64 * 4 * 3))


def test_a_step_changes_the_random_stream_once_however_many_ranks_there_are():
    streams = CountedStreams()
    order = DividedOrder(BatchSampler(Unknown(), 4, False), 1, 64, 64, True, streams)
    assert sum(1 for _ in order) == 3 and streams.asked == 4
