"""What part of the global batch this rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Share:
    """Set by the plugin that divides the data, as the loop takes a batch; read by the strategy at ``backward``.

    ``weight``: this rank's gradient counts so much in the mean over ranks: n_rank * world_size / n_all; 0.0 for a
    rank that was left without samples and repeats some. ``position``: a number that is equal on all ranks that are at
    the same point of the same order of data. ``indices``: the dataset indices behind this rank's batch. ``count``: n_all,
    0 where nobody has counted.
    """

    weight: float = 1.0
    position: int = 0
    indices: Sequence[Any] = ()
    count: int = 0
