"""Random numbers in the workers of a map-style loader differ between ranks, and between workers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.data import DataLoader
from torchbus.runtime import builtin

STRIDE = 2**20


class SeedWorker:
    """A ``worker_init_fn`` that seeds by rank, and then calls the user's own.

    All ranks draw the same base seed for the workers, so the stream that the order of the data is
    drawn from stays equal.
    """

    def __init__(self, rank: int, user: Callable[[int], None] | None) -> None:
        self._rank = rank
        self._user = user

    def __call__(self, worker_id: int) -> None:
        if self._rank:
            builtin.seed(torch.initial_seed() + STRIDE * self._rank)
        if self._user is not None:
            self._user(worker_id)


def seeds_of_workers(loader: DataLoader[object], rank: int) -> dict[str, object]:
    """Return the attribute with which the loader's workers, if it has any, are seeded by rank."""
    if not loader.num_workers:
        return {}
    return {"worker_init_fn": SeedWorker(rank, loader.worker_init_fn)}
