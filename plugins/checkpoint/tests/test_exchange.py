"""What ranks ask of the store for a checkpoint: rank 0 asks for all others at once."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torchbus._launch.store.sealed import SealedStore
from torchbus.testing import CountedStore

from torchbus_checkpoint.agreement.exchange import Exchange
from torchbus_checkpoint.errors import CheckpointError


def exchange(store: SealedStore, rank: int, world_size: int) -> Exchange:
    session: Any = SimpleNamespace(
        rank=rank,
        world_size=world_size,
        is_main=rank == 0,
        timeout=timedelta(seconds=1),
        world=SimpleNamespace(shared=store),
        job=SimpleNamespace(wait_until=lambda met, seconds: met(store)),
    )
    return Exchange(session, "step 9")


@pytest.mark.parametrize("world_size", [2, 300])
def test_as_many_requests_for_any_number_of_ranks(world_size: int) -> None:
    raw = dist.HashStore()
    stores = [CountedStore(raw, b"key") for _ in range(world_size)]
    ranks = [exchange(store, rank, world_size) for rank, store in enumerate(stores)]
    for one in ranks:
        one.meet()
    for rank in range(1, world_size):
        assert ranks[rank].gather({"files": rank}) == []
    assert ranks[0].gather({"files": 0}) == [{"files": rank} for rank in range(world_size)]
    held = raw.num_keys()
    for one in ranks:
        one.meet()
    assert raw.num_keys() == held + 1 - (world_size - 1)  # what is read is taken back
    assert max(store.requests for store in stores) <= 12


def test_the_rank_that_is_late_is_named() -> None:
    raw = dist.HashStore()
    ranks = [exchange(SealedStore(raw, b"key"), rank, 4) for rank in range(4)]
    for rank in (1, 3):
        ranks[rank].gather("mine")
    with pytest.raises(CheckpointError, match="rank 2 did not write its part of a checkpoint"):
        ranks[0].gather("mine")
