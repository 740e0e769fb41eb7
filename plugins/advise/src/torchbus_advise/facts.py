"""The observations as plain numbers, passed between processes as JSON."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchbus.plugin import hookimpl
from torchbus.tree import leaves, map_tensors

from torchbus_advise._compat import FakeTensor

ASKED_FOR = "torchbus_advise_workers"
"""The loader's attribute with the number of workers in the script, if it got none in this run."""


class Loading:
    """Times loaders iterated with gradients enabled. ``halve`` hands over half of each batch."""

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
        """Return the facts of the first training loader."""
        if self._loader is None:
            return None
        workers = vars(self._loader).get(ASKED_FOR, self._loader.num_workers)
        load_s = self._seconds_of_a_batch(self._loader)
        return LoaderFacts(self._rows, workers, load_s, length_of(self._loader.dataset))

    def _seconds_of_a_batch(self, loader: DataLoader[object]) -> float | None:
        """Return the seconds of a batch without workers, because workers hide how long they take.

        The first batch of a loop also opens files, so it is left out if there are others. Batches
        of fake tensors are not counted.
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
    """Return a batch with ``count`` rows of each tensor that has ``rows``; others are unchanged."""

    def part(tensor: Tensor) -> Tensor:
        return tensor[:count] if tensor.dim() and tensor.shape[0] == rows else tensor

    return map_tensors(batch, part)


NO_OPTIMIZER = -1
ROOT_UNIT = -1


@dataclass(frozen=True)
class ParameterFacts:
    """One parameter.

    ``optimizer`` is the number of the optimizer that holds it. ``managed`` is True if an optimizer
    holds a parameter of its model. ``unit`` is the number of the repeated block that it is in.
    ``state_bytes`` counts optimizer state of the same shape, and ``scalar_bytes`` the rest.
    """

    shape: tuple[int, ...]
    bytes: int
    gradient_bytes: int
    state_bytes: int
    scalar_bytes: int
    optimizer: int
    managed: bool
    unit: int


@dataclass(frozen=True)
class PassFacts:
    """One forward with its backward.

    ``checkpointed_bytes`` is what ``activation_bytes`` would be if each repeated block were
    computed again in backward. ``block_flops`` is the cost of that.
    """

    samples: int | None
    activation_bytes: int
    checkpointed_bytes: int
    flops: int
    block_flops: int


@dataclass(frozen=True)
class OptimizerFacts:
    name: str
    rates: tuple[float, ...]


@dataclass(frozen=True)
class LoaderFacts:
    """The training loader.

    ``load_s`` is the number of seconds in which one process loads a batch, or None if unknown.
    ``samples`` is the length of the data set, or None without a length.
    """

    batch_size: int | None
    workers: int
    load_s: float | None
    samples: int | None = None


@dataclass(frozen=True)
class ObservedFacts:
    """What was observed in one process.

    ``hindrances`` describe what sharded strategies refuse. ``notes`` say which values were invented
    and what was left out. ``warnings`` are those of the run, each with its line.
    """

    parameters: list[ParameterFacts]
    passes: list[PassFacts]
    optimizers: list[OptimizerFacts]
    loader: LoaderFacts | None
    buffer_bytes: int
    blocks: int
    local_precision: bool
    steps: int
    step_s: float | None = None
    hindrances: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def from_json(reported: dict[str, Any]) -> ObservedFacts:
    """Return the facts from their ``dataclasses.asdict``."""
    parts: dict[str, Any] = {
        "parameters": [
            ParameterFacts(**one | {"shape": tuple(one["shape"])}) for one in reported["parameters"]
        ],
        "passes": [PassFacts(**one) for one in reported["passes"]],
        "optimizers": [
            OptimizerFacts(one["name"], tuple(one["rates"])) for one in reported["optimizers"]
        ],
        "loader": LoaderFacts(**reported["loader"]) if reported["loader"] else None,
    }
    return ObservedFacts(**reported | parts)
