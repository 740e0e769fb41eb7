"""Random numbers in DataLoader workers: each rank's differ, as each worker's do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchbus.plugin import random_streams

STRIDE = 2**20


class SeedWorker:
    """A ``worker_init_fn``: seeds by rank, then calls the user's own. All ranks draw one base seed for the workers,
    so that the stream from which the order of data is drawn stays equal."""

    def __init__(self, rank: int, user: Callable[[int], None] | None) -> None:
        self._rank = rank
        self._user = user

    def __call__(self, worker_id: int) -> None:
        if self._rank:
            random_streams.seed(torch.initial_seed() + STRIDE * self._rank)
        if self._user is not None:
            self._user(worker_id)
