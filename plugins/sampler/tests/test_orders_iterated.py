"""Classes that are iterated, not drawn: those made from torch's, and large orders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchbus.world import Share

from torchbus_sampler.order import DividedOrder
from torchbus_sampler.orders.kinds import is_known
from torchbus_sampler.orders.sliced import Slices
from torchbus_strategy.random_streams import RandomStreams

from .order_walks import sliced, walk

State = tuple[bytes, bytes]
Step = tuple[Any, Share | None, bool, State]


class Reversed(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return reversed(range(len(self.data_source)))


class Odd(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[1], [3]])


def test_a_class_made_from_torchs_is_iterated() -> None:
    for inner, expected in (
        (BatchSampler(Reversed(range(4)), 2, False), [[3, 2], [1, 0]]),
        (Odd(SequentialSampler(range(4)), 1, False), [[1], [3]]),
    ):
        order = sliced(inner, 0, 1, 1, True, RandomStreams())
        assert not isinstance(iter(order), Slices) and list(order) == expected


def test_a_changed_class_is_iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_known(SequentialSampler(range(3)))
    monkeypatch.setattr(SequentialSampler, "__iter__", lambda self: iter([2, 2]))
    assert not is_known(SequentialSampler(range(3)))


def test_what_draws_from_elsewhere_is_iterated() -> None:
    # changes with the streams
    assert not is_known(RandomSampler(range(3), generator=torch.default_generator))
    assert not is_known(SubsetRandomSampler({0: "a", 1: "b"}))
    assert is_known(SubsetRandomSampler(["a", "b"]))


def test_errors_are_torchs() -> None:
    for sampler, error in (
        (RandomSampler(range(0), num_samples=3), ZeroDivisionError),
        (WeightedRandomSampler([1.0], 2, False), RuntimeError),
    ):
        for kind in (DividedOrder, sliced):
            with pytest.raises(error):
                next(iter(kind(BatchSampler(sampler, 2, False), 0, 2, 2, True, RandomStreams())))


def test_samplers_of_1e10_draws_are_drawn_as_far_as_needed() -> None:
    for generator in (None, torch.Generator()):
        inner = BatchSampler(
            RandomSampler(range(5), replacement=True, num_samples=10**10, generator=generator),
            8,
            False,
        )
        assert len(list(islice(sliced(inner, 1, 2, 2, True, RandomStreams()), 5))) == 5
    inner = BatchSampler(RandomSampler(range(5), num_samples=10**10), 8, False)
    assert len(list(islice(sliced(inner, 1, 2, 2, True, RandomStreams()), 5))) == 5
    indices = iter(
        sliced(
            BatchSampler(SequentialSampler(range(10**10)), 8, False), 1, 2, 2, True, RandomStreams()
        )
    )
    indices.skip(3 * 10**8)
    assert next(indices) == list(range(16 * 3 * 10**8 + 8, 16 * 3 * 10**8 + 16))


class Endless(Sampler[int]):
    """Of iteration alone: it has no length."""

    def __iter__(self) -> Iterator[int]:
        return count()


def test_a_sampler_without_a_length() -> None:
    order = sliced(BatchSampler(Endless(), 4, False), 1, 2, 2, True, RandomStreams())
    assert not order.is_ragged and list(islice(order, 2)) == [[4, 5, 6, 7], [12, 13, 14, 15]]


def first_difference(one: Any, other: Any, steps: int = 8) -> int | None:
    """The first step at which the positions of two ranks are not the same."""
    orders = [
        sliced(BatchSampler(sampler, 2, False), rank, 2, 2, True, RandomStreams())
        for rank, sampler in enumerate((one, other))
    ]
    positions = [
        [
            share.position
            for _, share, _, _ in islice(walk(order, lambda: (b"", b"")), steps)
            if share is not None
        ]
        for order in orders
    ]
    return next(
        (number for number, pair in enumerate(zip(*positions, strict=False)) if len(set(pair)) > 1),
        None,
    )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_orders_that_differ_have_other_positions() -> None:
    data, list_ = range(40), list(range(40))
    assert (
        first_difference(
            RandomSampler(data, generator=seeded(1)), RandomSampler(data, generator=seeded(1))
        )
        is None
    )
    assert (
        first_difference(
            RandomSampler(data, generator=seeded(1)), RandomSampler(data, generator=seeded(2))
        )
        == 0
    )
    assert first_difference(SequentialSampler(data), RandomSampler(data, generator=seeded(1))) == 0
    assert first_difference(SequentialSampler(data), SequentialSampler(range(11))) == 2
    assert (
        first_difference(
            RandomSampler(data, True, 99, seeded(1)), RandomSampler(data, True, 99, seeded(2))
        )
        == 0
    )
    swapped = [*list_[:30], 31, 30, *list_[32:]]
    assert (
        first_difference(
            SubsetRandomSampler(list_, seeded(1)), SubsetRandomSampler(swapped, seeded(1))
        )
        == 0
    )
    weights = [
        WeightedRandomSampler(weights, 40, True, seeded(1)) for weights in ([1.0, 2.0], [2.0, 1.0])
    ]
    assert first_difference(*weights) == 0
