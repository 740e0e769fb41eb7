"""The training loader: how large its batches are, and how long one takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sized

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchbus.plugin import hookimpl
from torchbus.tree import leaves, map_tensors

from torchbus_advise._compat import FakeTensor
from torchbus_advise.observing.facts import LoaderFacts

ASKED_FOR = "torchbus_advise_workers"
"""The attribute of a loader that says how many workers the script wanted, if it got none here."""


class Loading:
    """Listens to loaders iterated with gradients on. ``halve``: hand over half of each batch."""

    def __init__(self) -> None:
        self.samples: int | None = None
        self.halve = False
        self._wanted_at_s = 0.0
        self._load_s: list[float] = []
        self._rows = 0
        self._loader: DataLoader[object] | None = None

    @hookimpl
    def batch_wanted(self) -> None:
        self._wanted_at_s = time.perf_counter()

    @hookimpl
    def batch_ready(self, loader: DataLoader[object], batch: object) -> object:
        if not torch.is_grad_enabled():
            return None
        tensors = [one for one in leaves(batch) if isinstance(one, Tensor) and one.dim()]
        if not tensors:
            return None
        if not any(isinstance(one, FakeTensor) for one in tensors):
            self._load_s.append(time.perf_counter() - self._wanted_at_s)
        rows = tensors[0].shape[0]
        if self._loader is None:
            self._loader, self._rows = loader, rows
        self.samples = rows // 2 if self.halve and rows > 1 else rows
        return None if self.samples == rows else first_rows(batch, rows, self.samples)

    def facts(self) -> LoaderFacts | None:
        """Of the first training loader."""
        if self._loader is None:
            return None
        workers = vars(self._loader).get(ASKED_FOR, self._loader.num_workers)
        load_s = self._seconds_of_a_batch(self._loader)
        return LoaderFacts(self._rows, workers, load_s, length_of(self._loader.dataset))

    def _seconds_of_a_batch(self, loader: DataLoader[object]) -> float | None:
        """Time a batch without workers, because workers hide how long they take.

        The first batch of a loop also opens files, so it is left out if there are others. Batches
        made of fake data take other times.
        """
        if not loader.num_workers:
            return statistics.median(self._load_s[1:] or self._load_s) if self._load_s else None
        if isinstance(loader.dataset, IterableDataset):
            return None
        begun_s = time.perf_counter()
        loader.collate_fn([loader.dataset[index] for index in range(self._rows)])
        return time.perf_counter() - begun_s


def length_of(dataset: object) -> int | None:
    return len(dataset) if isinstance(dataset, Sized) else None


def first_rows(batch: object, rows: int, count: int) -> object:
    """Of each tensor that has ``rows`` of them, the first ``count``."""

    def part(tensor: Tensor) -> Tensor:
        return tensor[:count] if tensor.dim() and tensor.shape[0] == rows else tensor

    return map_tensors(batch, part)
