"""Orders of torch's samplers as arrays: the same, to the last draw, as iterating the sampler."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchbus.world import Share

from torchbus_sampler.order import DividedOrder, one_each, share_out, share_sizes
from torchbus_sampler.orders.sliced import Portions, Slices, even
from torchbus_strategy.random_streams import RandomStreams

from .order_walks import sliced, walk

Make = Callable[[int, Any], Any]
SAMPLERS: dict[str, Make] = {
    "sequential": lambda n, generator: SequentialSampler(range(n)),
    "random": lambda n, generator: RandomSampler(range(n), generator=generator),
    "random, fewer": lambda n, generator: RandomSampler(
        range(n), num_samples=-(-n // 2), generator=generator
    ),
    "random, more": lambda n, generator: RandomSampler(
        range(n), num_samples=2 * n + 1, generator=generator
    ),
    "random, twice": lambda n, generator: RandomSampler(
        range(n), num_samples=2 * n, generator=generator
    ),
    "with replacement": lambda n, generator: RandomSampler(
        range(7), replacement=True, num_samples=3 * n, generator=generator
    ),
    "with replacement, 32s": lambda n, generator: RandomSampler(
        range(2**40), replacement=True, num_samples=64, generator=generator
    ),
    "subset of a list": lambda n, generator: SubsetRandomSampler(
        [3 * index for index in range(n)], generator
    ),
    "subset of a range": lambda n, generator: SubsetRandomSampler(range(0, 2 * n, 2), generator),
    "subset of a tensor": lambda n, generator: SubsetRandomSampler(torch.arange(n) + 5, generator),
    "subset of nothing": lambda n, generator: SubsetRandomSampler([], generator),
    "weighted": lambda n, generator: WeightedRandomSampler([1.0, 2.0, 0.5], n, True, generator),
    "weighted, each once": lambda n, generator: WeightedRandomSampler(
        [1.0 + index for index in range(n + 2)], n, False, generator
    ),
}
cases = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(SAMPLERS)),
        "samples": st.integers(1, 90),
        "batch_size": st.integers(0, 7),  # 0: a sampler of single indices
        "drop_last": st.booleans(),
        "ranks": st.integers(1, 5),
        "global_batch": st.booleans(),
        "own_generator": st.booleans(),
        "pad": st.booleans(),
        "first_own": st.booleans(),
    }
)
State = tuple[bytes, bytes]
Step = tuple[Any, Share | None, bool, State]


class Passes:
    """The same sampler, made anew for each rank and each way, from the same random numbers."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._case = case

    def begin(
        self, kind: Callable[..., DividedOrder], rank: int
    ) -> tuple[DividedOrder, Callable[[], State]]:
        case = self._case
        torch.manual_seed(11)
        generator = torch.Generator().manual_seed(5)
        sampler = SAMPLERS[case["kind"]](
            case["samples"], generator if case["own_generator"] else None
        )
        inner = (
            BatchSampler(sampler, case["batch_size"], case["drop_last"])
            if case["batch_size"]
            else sampler
        )
        steps = 1 if case["global_batch"] else case["ranks"]
        order = kind(
            inner,
            rank,
            case["ranks"],
            steps,
            bool(case["batch_size"]),
            RandomStreams(),
            case["pad"],
            None,
            case["first_own"],
        )
        return order, lambda: (
            generator.get_state().numpy().tobytes(),
            torch.get_rng_state().numpy().tobytes(),
        )


def alike(one: Step, other: Step) -> None:
    (drawn, share, whole, state), (its, its_share, its_whole, its_state) = one, other
    assert state == its_state
    assert (
        share is None
        or its_share is None
        or (whole == its_whole and plain(its_share.indices) == plain(share.indices))
    )
    assert share is its_share is None or (share.weight, share.count) == (
        its_share.weight,
        its_share.count,
    )
    assert plain(drawn) == plain(its)


def plain(indices: Any) -> Any:
    """Indices of a tensor are tensors, drawn either way."""
    if isinstance(indices, list | tuple):
        return [(type(index), int(index)) for index in indices]
    return (type(indices), indices if indices is None else int(indices))


@settings(deadline=None)
@given(case=cases)
@example(
    case={
        "kind": "random, twice",
        "samples": 8,
        "batch_size": 4,
        "drop_last": False,
        "ranks": 2,
        "global_batch": False,
        "own_generator": True,
        "pad": True,
        "first_own": False,
    }
)
def test_the_same_as_iterating_the_sampler(case: dict[str, Any]) -> None:
    """Indices, shares, and both generators after each step: so a pass that is left early leaves
    them alike as well.
    """
    passes, positions = Passes(case), []
    for rank in range(case["ranks"]):
        expected = list(walk(*passes.begin(DividedOrder, rank)))
        order, state = passes.begin(sliced, rank)
        assert isinstance(iter(order), Slices)
        found = list(walk(order, state))
        assert len(found) == len(expected)
        for one, other in zip(expected, found, strict=True):
            alike(one, other)
        positions.append([share.position for _, share, _, _ in found if share is not None])
    longest = max(positions, key=len)
    assert len(set(longest)) == len(longest)
    assert all(longest[: len(mine)] == mine for mine in positions)


NAMES = "kind samples batch_size drop_last ranks global_batch own_generator pad first_own"
FACTS = ("with replacement, 32s", 1, 4, False, 2, True, False, False, True)
NOTHING_FIRST = dict(zip(NAMES.split(), FACTS, strict=True))


@settings(deadline=None, max_examples=50)
@example(case=NOTHING_FIRST, skipped=2, before=0)
@given(case=cases, skipped=st.integers(0, 12), before=st.integers(0, 3))
def test_skipping_is_as_going_there(case: dict[str, Any], skipped: int, before: int) -> None:
    passes, rank = Passes(case), case["ranks"] - 1
    order, state = passes.begin(sliced, rank)
    expected = list(walk(order, state))
    order, state = passes.begin(sliced, rank)
    indices = iter(order)
    begun = list(islice(walk(order, state, indices), before))
    if len(begun) < before or begun[-1:] == expected[-1:]:
        return
    try:
        indices.skip(skipped)
    except StopIteration:
        assert before + skipped > len(expected) - 1
    else:
        order.forget(skipped)
        found = list(walk(order, state, indices))
        assert len(found) == len(expected) - before - skipped
        for one, other in zip(expected[before + skipped :], found, strict=True):
            alike(one, other)


def test_batches_that_workers_load_are_forgotten_beside_those_skipped() -> None:
    order, _state = Passes(
        {
            "kind": "random",
            "samples": 60,
            "batch_size": 2,
            "drop_last": False,
            "ranks": 2,
            "global_batch": False,
            "own_generator": True,
            "pad": True,
            "first_own": False,
        }
    ).begin(sliced, 0)
    indices = iter(order)
    indices.skip(3)
    ahead = [next(indices) for _ in range(4)]
    order.forget(5)
    assert [list(share.indices) for share in order.pending] == ahead[2:]


@given(
    count=st.integers(0, 1000),
    ranks=st.integers(1, 9),
    size=st.integers(1, 9),
    at_least=st.integers(1, 2),
    per_step=st.booleans(),
)
def test_portions_are_what_is_shared_out(
    count: int, ranks: int, size: int, at_least: int, per_step: bool
) -> None:
    size, at_least = (size, at_least) if at_least == 2 else (1, 1)
    count = 1 + count % (size * (ranks if per_step else 1))
    batches = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    portions = Portions(ranks, size, at_least)
    shares = share_out(batches, ranks, size if at_least == 2 else None, at_least)
    assert [
        list(range(count))[start : start + length]
        for start, length in (portions.of(rank, count) for rank in range(ranks))
    ] == shares
    assert [even(rank, count, ranks, at_least).length for rank in range(ranks)] == share_sizes(
        count, ranks, at_least
    )
    first = one_each(batches, ranks) or shares
    assert [
        list(range(count))[start : start + length]
        for start, length in (portions.one_batch_each(rank, count) for rank in range(ranks))
    ] == first
