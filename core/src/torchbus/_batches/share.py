"""What part of the global batch this rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """What part of the global batch this rank holds.

    The plugin that divides the data sets it when the loop takes a batch. The strategy reads it at
    ``backward``.

    ``weight``: how much this rank's gradient counts in the mean over ranks: n_rank * world_size /
    n_all. It is 0.0 for a rank without samples, which repeats some. ``position``: a number that is
    equal on all ranks at the same point of the same order of data. ``indices``: the data set's
    indices behind this rank's batch. ``count``: n_all, or 0 if nobody has counted.
    """

    weight: float = 1.0
    position: int = 0
    indices: Sequence[object] = ()
    count: int = 0
