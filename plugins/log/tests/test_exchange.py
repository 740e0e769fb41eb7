"""Numbers of a log point: reduced in messages whose size does not depend on the number of ranks."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torchbus.errors import RanksDiverged

from torchbus_log import exchange
from torchbus_log.exchange import Key, NumberExchange, merged


class Together:
    """Threads in the place of ranks, whose messages meet in ``all_reduce``."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sizes: list[int] = []
        self._barrier = threading.Barrier(ranks, timeout=30)
        self._sent: dict[int, Any] = {}

    def all_reduce(self, message: torch.Tensor, op: Any) -> None:
        sent = self._gather(message.clone())
        self.sizes.append(message.numel())
        stacked = torch.stack(sent)
        message.copy_(stacked.sum(0) if op == dist.ReduceOp.SUM else stacked.max(0).values)

    def _gather(self, mine: Any) -> list[Any]:
        rank = threading.current_thread().rank  # type: ignore[attr-defined]
        self._sent[rank] = mine
        self._barrier.wait()
        found = [self._sent[one] for one in range(self.ranks)]
        self._barrier.wait()
        return found

    def reduced(self, step: list[int], keys: list[list[Key]], mine: list[list[Any]]) -> list[Any]:
        session: Any = SimpleNamespace(
            world_size=self.ranks, device="cpu", job=None, all_gather_object=self._gather
        )
        found: list[Any] = [None] * self.ranks

        def run(rank: int) -> None:
            try:
                found[rank] = NumberExchange(session).reduced(step[rank], keys[rank], mine[rank])
            except RanksDiverged as error:
                found[rank] = str(error)

        threads = [threading.Thread(target=run, args=[rank]) for rank in range(self.ranks)]
        for rank, thread in enumerate(threads):
            thread.rank = rank  # type: ignore[attr-defined]
            thread.start()
        for thread in threads:
            thread.join()
        return found


numbers = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
pairs = st.tuples(numbers, st.sampled_from([0.0, 1.0, 3.0]))


@settings(deadline=None, max_examples=30)
@given(data=st.data(), ranks=st.integers(2, 4), count=st.integers(0, 6))
def test_the_same_as_of_the_numbers_of_all_ranks(
    data: st.DataObject, ranks: int, count: int
) -> None:
    kinds = [data.draw(st.sampled_from(["mean", "sum", "max", "min"])) for _ in range(count)]
    keys = [Key(f"name {number}", kind, 7) for number, kind in enumerate(kinds)]
    mine = [data.draw(st.lists(pairs, min_size=count, max_size=count)) for _ in range(ranks)]
    with pytest.MonkeyPatch.context() as patched:
        together = Together(ranks)
        patched.setattr(exchange.dist, "all_reduce", together.all_reduce)
        patched.setattr(exchange, "NUMBERS_AT_FIRST", 4)  # so some messages have to grow
        found = together.reduced([7] * ranks, [[*keys, Key("a metric", "metric", 7)]] * ranks, mine)
    expected = [
        merged(kind, [theirs[place] for theirs in mine]) for place, kind in enumerate(kinds)
    ]
    for answer in found:
        assert answer == pytest.approx(expected, nan_ok=True, abs=1e-6)


@pytest.mark.parametrize("unlike", ["step", "name", "reduce"])
def test_what_differs_is_refused_on_all_ranks(monkeypatch: pytest.MonkeyPatch, unlike: str) -> None:
    together = Together(3)
    monkeypatch.setattr(exchange.dist, "all_reduce", together.all_reduce)
    other = {
        "step": Key("loss", "mean", 4),
        "name": Key("los", "mean", 4),
        "reduce": Key("loss", "max", 4),
    }[unlike]
    steps = [4, 4, 5 if unlike == "step" else 4]
    keys = [[Key("loss", "mean", 4)], [Key("loss", "mean", 4)], [other]]
    found = together.reduced(steps, keys, [[(1.0, 1.0)]] * 3)
    assert len(set(found)) == 1 and ("different steps" in found[0] or "s.log(" in found[0])


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_message_is_as_large_for_any_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    together = Together(ranks)
    monkeypatch.setattr(exchange.dist, "all_reduce", together.all_reduce)
    keys = [[Key("loss", "mean", 4), Key("peak", "max", 4)]] * ranks
    together.reduced([4] * ranks, keys, [[(1.0, 1.0), (2.0, 1.0)]] * ranks)
    assert together.sizes == [exchange.ALIKE + exchange.NUMBERS_AT_FIRST] * ranks + [1] * ranks


def test_numbers_that_all_ranks_have_in_common_stay_exact_for_32768_ranks() -> None:
    largest = exchange.PART - 1
    assert float(2**15 * largest**2) == 2**15 * largest**2 <= 2**53
