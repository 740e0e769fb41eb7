"""What the ranks' monitors ask of the store that all ranks share."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from torchbus_gpu import diagnoses
from torchbus_gpu.diagnoses import REPORTS_PER_S, Report, SlowRank
from torchbus_launch.store import SealedStore
from torchbus_testing.recorder import CountedStore

WORLDS = (2, 64, 16384)
EVERY_S, LOOKS = 2.0, 100


class Looked:
    """The judge of one rank, which is told that there are so many, and that the last one is slow.

    ``requests``: of each look that asked for something. ``warned``: what it has said.
    """

    def __init__(self, rank: int, world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        store = CountedStore(dist.HashStore(), b"key")
        local_s = [0.01] * (world_size - 1) + [0.09]
        reports = [asdict(Report("host", "cpu", one, 0.1, 0.0)) for one in local_s]
        others = SealedStore(store._held[0], b"key")
        others.set_all({str(one): json.dumps(report) for one, report in enumerate(reports)})
        self.requests: list[int] = []
        self.warned: list[str] = []
        session: Any = SimpleNamespace(rank=rank, world_size=world_size, device="cpu")
        session.world = SimpleNamespace(shared=SimpleNamespace(within=lambda word: store))
        notices: Any = SimpleNamespace(warn=self.warned.append)
        judge = SlowRank(session, notices)
        for look in range(1, LOOKS + 1):
            clock = SimpleNamespace(monotonic=functools.partial(float, look * EVERY_S))
            monkeypatch.setattr(diagnoses, "time", clock)
            before = store.requests
            judge.judge({"own_work_s": local_s[rank], "step_s": 0.1})
            self.requests += [store.requests - before] if store.requests > before else []


@pytest.mark.parametrize(("rank", "each"), [(0, 3), (-1, 1)])
def test_a_report_takes_as_many_requests_in_any_world(
    rank: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in WORLDS:
        assert set(Looked(rank % size, size, monkeypatch).requests) == {each}


def test_large_worlds_report_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [len(Looked(size - 1, size, monkeypatch).requests) for size in WORLDS]
    assert reports[0] == reports[1] == LOOKS
    assert 0.5 < reports[2] * WORLDS[2] / (LOOKS * EVERY_S * REPORTS_PER_S) < 1.1


def test_the_slow_rank_is_named_in_any_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in WORLDS:
        (warned,) = Looked(0, size, monkeypatch).warned
        assert warned.startswith(f"rank {size - 1} (cpu of host) is slow: 90.0 ms of local work")
