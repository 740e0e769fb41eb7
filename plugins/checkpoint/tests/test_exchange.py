"""What ranks ask of the store for a checkpoint: rank 0 asks for all others at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchbus_checkpoint import requests
from torchbus_checkpoint.disk import parts, tensors
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.exchange import CheckpointExchange
from torchbus_launch.store import SealedStore
from torchbus_strategy import decisions
from torchbus_testing.recorder import CountedStore

SIZES = (2, 8, 48)


class Asked(CountedStore):
    """``told``: the bytes of the values that it has set."""

    told = 0

    def _sealed(self, name: str, value: str | bytes) -> bytes:
        self.told += len(value)
        return super()._sealed(name, value)


def exchange(
    store: SealedStore, rank: int, world_size: int, meets: Any = None
) -> CheckpointExchange:
    """``meets``: waits until a condition of the store is met. Without it, it must be met."""
    session: Any = SimpleNamespace(
        rank=rank,
        world_size=world_size,
        is_main=rank == 0,
        timeout=timedelta(seconds=1),
        world=SimpleNamespace(shared=store),
        job=SimpleNamespace(wait_until=meets or (lambda met, seconds: met(store))),
    )
    return CheckpointExchange(session, "step 9")


@pytest.mark.parametrize("world_size", [2, 300])
def test_as_many_requests_for_any_number_of_ranks(world_size: int) -> None:
    raw = dist.HashStore()
    stores = [CountedStore(raw, b"key") for _ in range(world_size)]
    ranks = [exchange(store, rank, world_size) for rank, store in enumerate(stores)]
    for one in ranks:
        one.wait_for_rank0()
    for rank in range(1, world_size):
        assert ranks[rank].gather({"files": rank}) == []
    assert ranks[0].gather({"files": 0}) == [{"files": rank} for rank in range(world_size)]
    found = [one.scatter(list(range(world_size)) if one.is_main else []) for one in ranks]
    assert found == list(range(world_size))
    held = raw.num_keys()
    for one in ranks:
        one.wait_for_rank0()
    assert raw.num_keys() == held + 1 - (world_size - 1)  # what is read is taken back
    assert max(store.requests for store in stores) <= 12


@pytest.mark.parametrize("late", [1, 2, 3])
def test_the_rank_that_is_late_is_named(late: int) -> None:
    raw = dist.HashStore()
    ranks = [exchange(SealedStore(raw, b"key"), rank, 5) for rank in range(5)]
    for rank in {1, 2, 3, 4} - {late, 3}:
        ranks[rank].gather("mine")
    with pytest.raises(CheckpointError, match=f"rank {late} did not write its part of a check"):
        ranks[0].gather("mine")


class Together:
    """Ranks of one process, a thread each, that write a checkpoint in parts.

    Each has a tensor of its own, and ``alike`` ones that all have, as replicas do.
    """

    def __init__(self, folder: Path, world_size: int, alike: int = 0) -> None:
        self._raw, self._alike = dist.HashStore(), alike
        self._folder, self._world_size = folder, world_size
        folder.mkdir()
        self.stores = [Asked(self._raw, b"key") for _ in range(world_size)]
        with ThreadPoolExecutor(world_size) as threads:
            self.files = list(threads.map(self._write, range(world_size)))

    def _write(self, rank: int) -> list[str]:
        own = {f"of rank {rank:03}": torch.full((4,), float(rank))}
        alike = {f"of all {number}": torch.arange(3.0) for number in range(self._alike)}
        place = exchange(self.stores[rank], rank, self._world_size, self._meets(rank))
        return list(parts.write(self._folder, {"model": own | alike}, place))

    def _meets(self, rank: int) -> Any:
        """Wait without being counted, so that each rank asks once for what is there."""

        def wait(met: Any, seconds: float) -> bool:
            while not met(SealedStore(self._raw, b"key")):
                time.sleep(0.001)
            return bool(met(self.stores[rank]))

        return wait


def test_parts_need_as_many_requests_and_bytes_in_any_world(tmp_path: Path) -> None:
    worlds = [Together(tmp_path / str(size), size) for size in SIZES]
    for place in (0, -1):
        requests = [world.stores[place].requests for world in worlds]
        assert set(requests) == {3 if place == 0 else 4}
    told = [world.stores[-1].told for world in worlds]
    assert max(told) - min(told) <= 10  # the digits of its rank
    answers = [world.stores[0].told / (size - 1) for world, size in zip(worlds, SIZES, strict=True)]
    assert max(answers) < 10  # DCP changes nothing of a plan that only one rank has


def test_ranks_write_what_all_have_once(tmp_path: Path) -> None:
    """torch's DCP divides it over the ranks."""
    world = Together(tmp_path / "parts", 3, alike=7)
    assert world.files == [[f"part-{rank}.safetensors"] for rank in range(3)]
    whole: dict[str, Any] = {}
    for (name,) in world.files:
        with (tmp_path / "parts" / name).open("rb") as file, tensors.reading(file) as reader:
            for key, ((_, _, tensor),) in reader.content().items():
                assert key not in whole
                whole[key] = tensor
    assert len(whole) == 3 + 7
    for rank in range(3):
        assert whole.pop(f"model.of rank {rank:03}").tolist() == [float(rank)] * 4
    assert all(value.equal(torch.arange(3.0)) for value in whole.values())
    sizes = [(tmp_path / "parts" / names[0]).stat().st_size for names in world.files]
    assert [10 * size // sum(sizes) for size in sizes] == [2, 3, 3]


def test_the_store_keeps_the_last_decisions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_DECISIONS", 3)
    monkeypatch.setattr(decisions, "LOOK_EVERY_S", 0.0)  # each boundary is looked at
    raw = dist.HashStore()
    ranks = [requests_of(SealedStore(raw, b"key"), rank) for rank in range(2)]
    for _ in range(12):
        for one in ranks:  # rank 0 writes at a boundary what rank 1 reads at the next one
            one.look()
    assert raw.num_keys() == 3


def requests_of(store: SealedStore, rank: int) -> requests.Requests:
    session: Any = SimpleNamespace(
        rank=rank,
        world_size=2,
        is_main=rank == 0,
        timeout=timedelta(seconds=1),
        world=SimpleNamespace(shared=store, store=store),
        job=SimpleNamespace(
            wait_until=lambda met, seconds: met(store), leave_signals=lambda numbers: None
        ),
        on_close=ExitStack(),
    )
    made = requests.Requests(session, lambda: False, None)
    session.on_close.close()  # this process goes on to get its signals
    return made
